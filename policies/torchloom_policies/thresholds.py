"""Act on a metric that crosses a level, by rules in ``torchloom.toml``."""

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchloom_core.plugin import (
    Action,
    Alert,
    ChangeKnob,
    CollectDump,
    DrainGroup,
    FleetView,
    Floats,
    Migrate,
    Need,
    NotNegative,
    PauseRun,
    Positive,
    Proposal,
    Registry,
    SaveCheckpoint,
    Share,
    grow,
    hookimpl,
)

Level = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
Rows = NDArray[np.bool_]

REPORTED_ONE_BY_ONE = 20
"""Most alerts and dumps of one rule at one tick; one more alert counts the rest."""

_COMPARE: dict[str, Callable[[Any, float], Any]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_NEVER = -1


class SetTo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``action = { knob = "...", value = ... }``: set a knob.

    A ``worker``-fenced knob is set on the worker that crossed the level, a ``run``-fenced one
    on all.
    """

    knob: str
    value: bool | int | float | str


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[[policies.thresholds.rules]]``."""

    metric: str
    """Name of the metric, with its unit (``gpu_temp_celsius``)."""
    level: Level
    """In the metric's unit."""
    comparison: Literal[">", ">=", "<", "<="] = ">"
    """The rule holds while ``metric comparison level``."""
    for_s: NotNegative = 0.0
    """How long it must hold without a break before the rule fires, seconds."""
    clear: Level | None = None
    """The rule can fire again for a worker once ``metric comparison clear`` is false; absent: the
    level itself. Use another value for a noisy metric (hysteresis)."""
    action: Literal["alert", "migrate", "drain", "checkpoint", "pause", "dump"] | SetTo = "alert"
    """``alert``, ``migrate``, ``drain``, ``checkpoint``, ``pause``, ``dump``, or ``{ knob = "...",
    value = ... }``."""
    gain_gpu_s: NotNegative = 0.0
    cost_gpu_s: NotNegative = 0.0
    """What the action saves if the rule is right, and what it costs in any case, in useful
    GPU-seconds. Only an alert needs no gain."""
    confidence: Share = 1.0
    """Probability that the rule is right, 0 to 1."""
    expires_s: Positive = 300.0
    """How long the proposal waits for approval, if the action needs it, seconds."""

    def __post_init__(self) -> None:
        rising = self.comparison.startswith(">")
        if (self.clear_level > self.level) if rising else (self.clear_level < self.level):
            side = "<=" if rising else ">="
            raise ValueError(f"need clear {side} level {self.level:g}, was {self.clear_level:g}")
        net_gpu_s = self.confidence * self.gain_gpu_s - self.cost_gpu_s
        if self.action != "alert" and net_gpu_s <= 0:
            raise ValueError(
                "need confidence x gain_gpu_s - cost_gpu_s > 0 for any action but alert (others "
                f"are never granted), was {net_gpu_s:g}"
            )

    @property
    def clear_level(self) -> float:
        """The level that the metric must pass before the rule can fire again."""
        return self.level if self.clear is None else self.clear


class ThresholdsPolicy:
    """Fire once each time a worker's metric crosses a rule's level and stays there.

    A missing value never fires or clears a rule, but it restarts ``for_s``. Rules with an action
    on the run or a group consider only training and paused workers, and propose the action once
    for all of them.
    """

    name = "thresholds"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.thresholds]``."""

        rules: tuple[Rule, ...] = ()
        """Evaluated independently of each other, in this order."""

    def __init__(self, options: Options) -> None:
        self._watches = [_Watch(rule) for rule in options.rules]
        self.needs = tuple(Need(metric) for metric in sorted({r.metric for r in options.rules}))

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Propose the actions of the rules that fire at this tick."""
        if not self._watches:
            return
        present = ~view.is_in("left", "gone")
        in_run = view.is_in("training", "paused")
        for watch in self._watches:
            watched = in_run if watch.acts_on_run else present
            values = np.where(watched, view.latest(watch.rule.metric), np.nan)
            yield from watch.look(values, present, view)

    def lapsed(self, view: FleetView, proposal: Proposal) -> str:
        """Return that the rules behind the action have cleared, if so."""
        if any(watch.wants(proposal.action, view) for watch in self._watches):
            return ""
        return "every rule with this action has cleared"


class _Watch:
    """One rule, and for every worker since when it is true and whether it has fired."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.acts_on_run = rule.action in ("migrate", "drain", "checkpoint", "pause")
        self._compare = _COMPARE[rule.comparison]
        self._holds_since_ns = np.zeros(0, dtype=np.int64)
        self._fired: Rows = np.zeros(0, dtype=np.bool_)

    def look(self, values: Floats, present: Rows, view: FleetView) -> Iterator[Proposal]:
        """Follow the ``(workers,)`` values; propose for those that fire now."""
        rule = self.rule
        since_ns = grow(self._holds_since_ns, len(view), _NEVER)
        before = grow(self._fired, len(view))
        holds = self._compare(values, rule.level)
        since_ns = np.where(holds, np.where(since_ns == _NEVER, view.now_ns, since_ns), _NEVER)
        due = holds & (view.now_ns - since_ns >= round(rule.for_s * 1e9))
        cleared = ~np.isnan(values) & ~self._compare(values, rule.clear_level)
        self._holds_since_ns = since_ns
        self._fired = due | (before & ~cleared & present)
        fires = np.flatnonzero(due & ~before)
        if len(fires):
            yield from self._propose(fires, np.flatnonzero(before), values, view)

    def wants(self, action: Action, view: FleetView) -> bool:
        """Return whether the rule fired with this action and was not cleared."""
        match action:
            case Alert() | CollectDump():  # they report a past state, so they never lapse
                return True
        fired = np.flatnonzero(self._fired).tolist()
        return any(self._action(row, "", view) == action for row in fired)

    def _propose(
        self, fires: NDArray[np.intp], fired: NDArray[np.intp], values: Floats, view: FleetView
    ) -> Iterator[Proposal]:
        acted_on = {self._action(row, "", view) for row in fired}
        fresh: list[int] = []
        for row in fires:
            action = self._action(row, "", view)
            if action not in acted_on:
                acted_on.add(action)
                fresh.append(row)
        more = 0
        if self.rule.action in ("alert", "dump"):
            more = len(fresh) - REPORTED_ONE_BY_ONE
            fresh = fresh[:REPORTED_ONE_BY_ONE]
        for row in fresh:
            reason = self._reason(row, values, view)
            yield Proposal(
                action=self._action(row, reason, view),
                reason=reason,
                gain_gpu_s=self.rule.gain_gpu_s,
                cost_gpu_s=self.rule.cost_gpu_s,
                confidence=self.rule.confidence,
                expires_s=self.rule.expires_s,
            )
        if more > 0:
            row = fires[-1]
            text = f"{more} more workers like this: {self._reason(row, values, view)}"
            yield Proposal(action=Alert(worker=view.workers[row], text=text), reason=text)

    def _action(self, row: int, reason: str, view: FleetView) -> Action:
        worker, group = view.workers[row], view.group[row]
        match self.rule.action:
            case "alert":
                return Alert(worker=worker, text=reason)
            case "migrate":
                return Migrate(group=group)
            case "drain":
                return DrainGroup(group=group)
            case "checkpoint":
                return SaveCheckpoint()
            case "pause":
                return PauseRun()
            case "dump":
                return CollectDump(worker=worker)
            case SetTo(knob=knob, value=value):
                spec = view.knob_specs.get(knob)
                is_for_all = spec is not None and spec.fence == "run"
                return ChangeKnob(knob=knob, value=value, worker=None if is_for_all else worker)

    def _reason(self, row: int, values: Floats, view: FleetView) -> str:
        rule = self.rule
        lasted = f" for {rule.for_s:g} s" if rule.for_s else ""
        return (
            f"{view.workers[row]} on {view.node[row] or 'an unknown node'}: {rule.metric} was "
            f"{values[row]:.6g}, {rule.comparison} {rule.level:g}{lasted}"
        )


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(ThresholdsPolicy)
