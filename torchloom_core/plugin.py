"""Everything the author of a policy or a predictor imports.

A plugin is a module, named by an entry point in the group ``torchloom``, that registers
classes::

    from torchloom_core.plugin import FleetView, Need, Proposal, Registry, hookimpl

    class MyPolicy:
        name = "my_policy"

        class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
            ratio: float = 1.5

        def __init__(self, options: Options) -> None:
            self.needs = (Need("step_time_s", window_s=30),)

        def on_tick(self, view: FleetView) -> Iterable[Proposal]:
            ...

    @hookimpl
    def torchloom_register(registry: Registry) -> None:
        registry.policy(MyPolicy)

Policies and predictors use no clock, no I/O, no threads and no unseeded randomness: the same
view must give the same answer, live and in a backtest.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec
import pluggy

from torchloom_core.actions import (
    Action,
    Alert,
    ChangeKnob,
    CollectDump,
    DrainGroup,
    Migrate,
    PauseRun,
    ResumeRun,
    SaveCheckpoint,
)
from torchloom_core.config import Costs, NotNegative, Positive, Share
from torchloom_core.decisions import Forecast, Proposal
from torchloom_core.fleet.columns import Floats
from torchloom_core.fleet.view import Fault, FleetView, Need, grow

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
    def needs(self) -> Sequence[Need]:
        """Every metric it reads, and how far back."""

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
    def needs(self) -> Sequence[Need]:
        """Every metric it reads, and how far back."""

    @property
    def horizon_s(self) -> float:
        """How far ahead it looks, seconds."""

    @property
    def every_s(self) -> float:
        """How often it is asked, seconds."""

    def forecast(self, view: FleetView) -> Hazard:
        """Return the failure probability of every worker within ``horizon_s``."""


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


__all__ = [
    "Action",
    "Alert",
    "ChangeKnob",
    "CollectDump",
    "Costs",
    "DrainGroup",
    "Fault",
    "FleetView",
    "Floats",
    "Forecast",
    "Hazard",
    "Hooks",
    "Migrate",
    "Need",
    "NotNegative",
    "PauseRun",
    "Policy",
    "Positive",
    "Predictor",
    "Proposal",
    "Registry",
    "ResumeRun",
    "SaveCheckpoint",
    "Share",
    "grow",
    "hookimpl",
]
