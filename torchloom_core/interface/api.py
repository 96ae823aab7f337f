"""The protocols of policies and predictors, and the hook that registers them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec
import pluggy

from torchloom_core.interface.effector import Effector
from torchloom_core.interface.needs import PolicyNeed, PredictorNeed
from torchloom_core.interface.view import FleetView
from torchloom_core.wire.decisions import Proposal

PROJECT = "torchloom"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@runtime_checkable
class Policy(Protocol):
    """Reads the fleet view once a tick and proposes actions.

    ``Options`` is a msgspec struct; its fields are the keys allowed under
    ``[policies.<name>]`` in ``torchloom.toml``, and ``__init__`` gets an instance. A policy need
    not inherit from this class.

    Examples
    --------
    >>> import msgspec
    >>> import numpy as np
    >>> from torchloom_core.plugin import Alert, Need, Policy, Proposal
    >>> from torchloom_core.testing import view_of
    >>> class Hot:
    ...     name = "hot"
    ...
    ...     class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ...         limit_celsius: float = 90.0
    ...
    ...     def __init__(self, options):
    ...         self._limit_celsius = options.limit_celsius
    ...         self.needs = (Need("gpu_temp_celsius"),)
    ...
    ...     def on_tick(self, view):
    ...         celsius = view.latest("gpu_temp_celsius")  # (workers,)
    ...         for row in np.flatnonzero(celsius > self._limit_celsius):  # NaN compares false
    ...             text = f"{celsius[row]:.0f} degrees"
    ...             yield Proposal(action=Alert(worker=view.workers[row], text=text), reason=text)
    >>> policy = Hot(Hot.Options(limit_celsius=85.0))
    >>> isinstance(policy, Policy)
    True
    >>> view = view_of({"gpu_temp_celsius": [60.0, 91.0, float("nan")]})
    >>> [proposal.action for proposal in policy.on_tick(view)]
    [Alert(worker='w1', text='91 degrees')]
    """

    @property
    def name(self) -> str:
        """Its name in the config: a class attribute."""

    @property
    def Options(self) -> type[msgspec.Struct]:
        """The options in the config: a nested class."""

    @property
    def needs(self) -> Sequence[PolicyNeed]:
        """The data that it reads: metrics, forecasts, and faults older than one day."""

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Return or yield proposals for this tick, or None."""


@runtime_checkable
class WithdrawingPolicy(Policy, Protocol):
    """A policy that withdraws its proposals that wait for approval when they no longer apply.

    A proposal of any other policy can be approved until it expires.

    Examples
    --------
    >>> import msgspec
    >>> from torchloom_core.plugin import Migrate, Proposal, WithdrawingPolicy
    >>> from torchloom_core.testing import view_of
    >>> class MoveHot:
    ...     name = "move_hot"
    ...     needs = ()
    ...
    ...     class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ...         pass
    ...
    ...     def on_tick(self, view):
    ...         return [Proposal(action=Migrate(group="g0"), reason="g0 is hot", gain_gpu_s=60.0)]
    ...
    ...     def lapsed(self, view, proposal):
    ...         return "" if proposal.action.group in view.group else "the group has left"
    >>> policy = MoveHot()
    >>> isinstance(policy, WithdrawingPolicy)
    True
    >>> view = view_of(workers=1)
    >>> [policy.lapsed(view, proposal) for proposal in policy.on_tick(view)]
    ['']
    """

    def lapsed(self, view: FleetView, proposal: Proposal) -> str:
        """Return why the proposal no longer applies; an empty string if it still does.

        Called for each of the policy's waiting proposals, at every tick and when a person approves
        it.
        """


class Hazard(msgspec.Struct, frozen=True, kw_only=True):
    """A predictor's answer for one view.

    Attributes
    ----------
    probability : (workers,) float64
        Probability of a failure within ``horizon_s``, in [0, 1]; NaN if not judged.
    why : mapping of int to str
        Row to one sentence for a person; may be a lazy mapping.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.plugin import Hazard
    >>> hazard = Hazard(probability=np.array([0.0, 0.7, np.nan]), why={1: "fan at 0 rpm"})
    >>> hazard.probability
    array([0. , 0.7, nan])
    """

    probability: Any
    why: Mapping[int, str] = {}


@runtime_checkable
class Predictor(Protocol):
    """Estimates from telemetry the probability that a worker fails within ``horizon_s``.

    Called in another thread, every ``every_s``, with a copy of the windows that it needs.
    ``Options`` are those of ``[predictors.<name>]``. A predictor need not inherit from this class.

    Examples
    --------
    >>> import msgspec
    >>> import numpy as np
    >>> from torchloom_core.plugin import Hazard, Need, Predictor
    >>> from torchloom_core.testing import view_of
    >>> class FanStopped:
    ...     name = "fan_stopped"
    ...     needs = (Need("fan_rpm"),)
    ...     horizon_s = 600.0
    ...     every_s = 30.0
    ...
    ...     class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ...         hazard: float = 0.5
    ...
    ...     def __init__(self, options):
    ...         self._hazard = options.hazard
    ...
    ...     def forecast(self, view):
    ...         rpm = view.latest("fan_rpm")  # (workers,)
    ...         probability = np.where(rpm == 0, self._hazard, 0.0)
    ...         return Hazard(probability=np.where(np.isnan(rpm), np.nan, probability))
    >>> predictor = FanStopped(FanStopped.Options())
    >>> isinstance(predictor, Predictor)
    True
    >>> predictor.forecast(view_of({"fan_rpm": [4000.0, 0.0, np.nan]})).probability
    array([0. , 0.5, nan])
    """

    @property
    def name(self) -> str:
        """Its name in the config: a class attribute."""

    @property
    def Options(self) -> type[msgspec.Struct]:
        """The options in the config: a nested class."""

    @property
    def needs(self) -> Sequence[PredictorNeed]:
        """The data that it reads: metrics, and faults older than one day."""

    @property
    def horizon_s(self) -> float:
        """How far ahead a forecast looks, seconds."""

    @property
    def every_s(self) -> float:
        """The interval between forecasts, seconds."""

    def forecast(self, view: FleetView) -> Hazard:
        """Return the failure probability of every worker within ``horizon_s``."""


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of the past to learn from: the view then, and the outcome.

    Attributes
    ----------
    view : FleetView
        The view of a forecast at that moment; valid until the next example.
    outcome : (workers,) float64
        1 if the worker failed within ``horizon_s``, 0 if it did not, NaN if unknown: it was
        drained or under repair, its label is uncertain, or the span ended.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.plugin import Example
    >>> from torchloom_core.testing import view_of
    >>> view = view_of({"fan_rpm": [4000.0, 0.0]})
    >>> example = Example(view=view, outcome=np.array([0.0, 1.0]))
    >>> [w for w, failed in zip(example.view.workers, example.outcome, strict=True) if failed]
    ['w1']
    """

    view: FleetView
    outcome: Any


@runtime_checkable
class Learner(Predictor, Protocol):
    """A predictor that ``torchloom fit`` trains on examples, and whose parameters it saves.

    A predictor without these methods can be fitted as well: then only its probabilities are
    calibrated and its threshold is set.

    Examples
    --------
    >>> import msgspec
    >>> import numpy as np
    >>> from torchloom_core.lab.learning import json_part
    >>> from torchloom_core.plugin import Example, Hazard, Learner, PluginError
    >>> from torchloom_core.testing import view_of
    >>> class BaseRate:
    ...     name = "base_rate"
    ...     needs = ()
    ...     horizon_s = 3600.0
    ...     every_s = 600.0
    ...
    ...     class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ...         pass
    ...
    ...     def __init__(self, options):
    ...         self._rate = np.nan  # untrained: no worker is judged
    ...
    ...     def forecast(self, view):
    ...         return Hazard(probability=np.full(len(view), self._rate))
    ...
    ...     def fit(self, examples):
    ...         seen = [example.outcome[~np.isnan(example.outcome)] for example in examples]
    ...         if not any(outcome.any() for outcome in seen):
    ...             raise PluginError("base_rate: need a failure to learn from, was none")
    ...         self._rate = float(np.mean(np.concatenate(seen)))
    ...
    ...     def parts(self):
    ...         return {"rate.json": msgspec.json.encode(self._rate)}
    ...
    ...     def restore(self, parts):
    ...         self._rate = json_part(parts, "rate.json", float)
    >>> learner, restored = BaseRate(BaseRate.Options()), BaseRate(BaseRate.Options())
    >>> isinstance(learner, Learner)
    True
    >>> view = view_of(workers=4)
    >>> learner.fit([Example(view=view, outcome=np.array([0.0, 0.0, 1.0, np.nan]))])
    >>> restored.restore(learner.parts())
    >>> restored.forecast(view).probability.round(2)
    array([0.33, 0.33, 0.33, 0.33])
    """

    def fit(self, examples: Iterable[Example]) -> None:
        """Learn from examples, which are in time order and can be iterated once.

        ``torchloom fit`` calls it twice: without the last part of the time, which is used for
        calibration, then with it. Each call starts anew.

        Raises
        ------
        PluginError
            If nothing can be learned from them, for example because there is no failure.
        """

    def parts(self) -> Mapping[str, bytes]:
        """Return the learned parameters: file name to bytes. No pickle."""

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Restore the state from :meth:`parts` of an instance with the same options."""


class Registry(Protocol):
    """The registry to which a plugin module adds its classes.

    Examples
    --------
    >>> from torchloom_core.plugin import Registry, hookimpl
    >>> class Noted:
    ...     def policy(self, cls):
    ...         print("a policy:", cls.name)
    ...
    ...     def predictor(self, cls):
    ...         print("a predictor:", cls.name)
    ...
    ...     def effector(self, cls):
    ...         print("an effector:", cls.name)
    >>> class Hot:
    ...     name = "hot"
    >>> @hookimpl
    ... def torchloom_register(registry):
    ...     registry.policy(Hot)
    >>> torchloom_register(Noted())
    a policy: hot
    """

    def policy(self, cls: type[Policy]) -> None:
        """Register a policy class; the config decides whether it is active."""

    def predictor(self, cls: type[Predictor]) -> None:
        """Register a predictor class; the config decides whether it is active."""

    def effector(self, cls: type[Effector]) -> None:
        """Register an effector class; the config decides whether it is active."""


class Hooks:
    """The hooks a plugin module may implement."""

    @hookspec
    def torchloom_register(self, registry: Registry) -> None:
        """Register the module's policies, predictors and effectors."""
