"""What a policy and a predictor are: the protocols, and the hook that registers them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec
import pluggy

from torchloom_core.plugin.needs import PolicyNeed, PredictorNeed
from torchloom_core.plugin.view import FleetView
from torchloom_core.wire.events import Proposal

PROJECT = "torchloom"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@runtime_checkable
class Policy(Protocol):
    """Looks at the fleet once a tick and proposes actions.

    ``Options`` is a msgspec struct; its fields are the keys allowed under
    ``[policies.<name>]`` in ``torchloom.toml``, and an instance is given to ``__init__``.
    """

    @property
    def name(self) -> str:
        """Its name in the config: a class attribute."""

    @property
    def Options(self) -> type[msgspec.Struct]:
        """What the config may say: a nested class."""

    @property
    def needs(self) -> Sequence[PolicyNeed]:
        """All that it reads: metrics, forecasts, and faults from more than a day back."""

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Return or yield what should be done now, or nothing."""


class Hazard(msgspec.Struct, frozen=True, kw_only=True):
    """A predictor's answer for one view.

    Attributes
    ----------
    probability : (workers,) float64
        Of failing within the predictor's ``horizon_s``, in [0, 1], NaN where it cannot judge.
    why : dict of int to str
        Row to one sentence for a person.
    """

    probability: Any
    why: dict[int, str] = {}


@runtime_checkable
class Predictor(Protocol):
    """Turns telemetry history into the probability that a worker fails soon.

    Called off the Weaver's loop, every ``every_s``, with a copy of the windows it needs.
    """

    @property
    def name(self) -> str:
        """Its name in the config: a class attribute."""

    @property
    def Options(self) -> type[msgspec.Struct]:
        """What the config may say: a nested class."""

    @property
    def needs(self) -> Sequence[PredictorNeed]:
        """All that it reads: metrics, and faults from more than a day back."""

    @property
    def horizon_s(self) -> float:
        """How far ahead it looks, seconds."""

    @property
    def every_s(self) -> float:
        """How often it is asked, seconds."""

    def forecast(self, view: FleetView) -> Hazard:
        """Return the failure probability of every worker within ``horizon_s``."""


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of the past to learn from: what was to be seen, and what came of it.

    Attributes
    ----------
    view : FleetView
        Just what a forecast at that moment would have been shown; valid until the next example.
    outcome : (workers,) float64
        1 where the worker failed within ``horizon_s``, 0 where it did not, NaN where nobody
        knows: it was drained or under repair, its label is uncertain, or the span ended.
    """

    view: FleetView
    outcome: Any


@runtime_checkable
class Learner(Predictor, Protocol):
    """A predictor that learns: ``torchloom fit`` shows it examples and keeps what it learned.

    A predictor without these methods can be fitted as well: then only its probabilities are
    calibrated and its threshold is set.
    """

    def fit(self, examples: Iterable[Example]) -> None:
        """Learn from examples, which come in time order and only once.

        Raises
        ------
        PluginError
            If nothing can be learned from them, such as without a single failure.
        """

    def parts(self) -> Mapping[str, bytes]:
        """Return what was learned: file name to bytes. No pickle."""

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Become what :meth:`parts` was taken from; the options are the same."""


class Registry(Protocol):
    """Where a plugin module puts its classes."""

    def policy(self, cls: type[Policy]) -> None:
        """Offer a policy class; the config decides whether it is active."""

    def predictor(self, cls: type[Predictor]) -> None:
        """Offer a predictor class; the config decides whether it is active."""


class Hooks:
    """The hooks a plugin module may implement."""

    @hookspec
    def torchloom_register(self, registry: Registry) -> None:
        """Register the module's policies and predictors."""
