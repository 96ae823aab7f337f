"""One pause, of a run or of a role: whether all workers reached it, and why it has to end.

A worker pauses at its own step boundary, so groups may stop at different steps: one waits at its
boundary, the other in the quorum for it. This module detects such a split and undoes the pause.
:mod:`torchloom_core.capabilities.pause.kind` calls it while the pause begins, the kernel while it
is in force; workers that are not sent a
:class:`~torchloom_core.wire.messages.PauseState` continue by themselves.
"""

from collections.abc import Iterable

import msgspec

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.wire.commands import Ack
from torchloom_core.wire.decisions import Notice, Output, PauseChanged
from torchloom_core.wire.messages import Exit, Note, PauseState

PAUSE_OVER = "pause_over"
"""Kind of the note with which a worker reports that its pause ended by itself."""

_TOGETHER_NS = 1 * SECOND_NS
"""All must pause within this time: a worker waits 1.5 s for the Weaver's confirmation."""

_SETTLED_NS = SECOND_NS // 2
"""Telemetry from before a pause may arrive this much later than its ack."""

_LOCKSTEP = "torchft"
_NAMED = 3


class _Paused(msgspec.Struct, frozen=True):
    incarnation: int
    step: int
    at_ns: int


class RunPause:
    """The pause of a run, or of one of its roles.

    Attributes
    ----------
    role : str
        The role that it concerns; "": the whole run.
    verdict : str
        The verdict whose pause is in force, or "".
    making : str
        The verdict whose pause is beginning, or "".
    """

    def __init__(self, fleet: FleetState, stale_after_s: float, role: str = "") -> None:
        self._fleet = fleet
        self.role = role
        self._stale_ns = round(stale_after_s * SECOND_NS)
        self.verdict = ""
        self.making = ""
        self._broken = ""
        self._first_ns = 0
        self._expected: set[str] = set()
        self._paused: dict[str, _Paused] = {}
        self._steps: dict[str, set[int]] = {}

    @property
    def going_on(self) -> bool:
        """Whether a pause is beginning or in force."""
        return bool(self.verdict or self.making)

    # --- while it begins ---

    def make(self, verdict: str, workers: Iterable[str]) -> None:
        """Begin to pause these workers."""
        self.making = verdict
        self._expected = set(workers)

    def give_up(self, why: str) -> None:
        """Undo the pause that is beginning."""
        self._broken = why

    def applied(self, ack: Ack, verdict: str, now_ns: int) -> None:
        """Record that a worker has paused by the pause of ``verdict``."""
        if verdict != self.making:
            return
        self._first_ns = self._first_ns or now_ns
        self._paused[ack.worker] = _Paused(ack.incarnation, ack.step, now_ns)
        hello = self._fleet.hello[self._fleet.row_of[ack.worker]]
        if hello.framework == _LOCKSTEP:
            self._steps.setdefault(hello.role, set()).add(ack.step)

    def trouble(self, now_ns: int) -> str:
        """Return why the pause that is beginning must be undone, or ""."""
        if self._broken:
            return self._broken
        # Once the last worker has paused, the pause is no longer beginning.
        late = bool(self._first_ns) and now_ns - self._first_ns > _TOGETHER_NS
        is_split = any(len(steps) > 1 for steps in self._steps.values())
        return self._undone() if late or is_split else ""

    def settle(self, trouble: str) -> list[Output]:
        """Put the pause in force once all have paused, or undo it because of ``trouble``."""
        if trouble:
            over = self.making
            self._clear()
            return [self._changed(over)]
        self.verdict, self.making = self.making, ""
        return [self._changed()]

    # --- while it is in force ---

    def step_text(self) -> str:
        """Return the step at which all are paused, as ``at step 10``, or "" if it differs."""
        steps = {paused.step for paused in self._paused.values()}
        return f" at step {steps.pop()}" if len(steps) == 1 else ""

    def state(self, run: str, epoch: int, over: str) -> PauseState:
        """Return the message to its workers; ``over`` is the verdict of a pause that has ended."""
        return PauseState(run=run, epoch=epoch, verdict=self.verdict, over=over, role=self.role)

    def end(self, why: str) -> list[Output]:
        """End the pause in force for all, with a notice if there is a reason ``why``."""
        if not self.verdict:
            return []
        over, self.verdict = self.verdict, ""
        self._clear()
        ended = self._changed(over)
        if not why:
            return [ended]
        whom = f"the pause of role {self.role}" if self.role else "the pause"
        return [ended, Notice(kind=PAUSE_OVER, text=f"{whom} has ended for all: {why}")]

    def check(self, now_ns: int, worker: str = "") -> list[Output]:
        """End the pause in force if its worker, any for "", no longer pauses or is unreachable."""
        if not self.verdict:
            return []
        paused = [one for one in (worker,) if one in self._paused] if worker else [*self._paused]
        for worker in paused:
            why = self._left_it(worker, now_ns)
            if why:
                return self.end(why)
        return []

    def react(self, message: Exit | Note) -> list[Output]:
        """End the pause if a worker reports that it no longer pauses."""
        paused = self._paused.get(message.worker)
        if paused is None or paused.incarnation != message.incarnation:
            return []
        match message:
            case Exit(expected=True):
                # An expected exit does not end the pause of the others.
                del self._paused[message.worker]
                self._expected.discard(message.worker)
                return []
            case Exit():
                why = f"{message.worker} has ended"
            case Note(kind=kind, fields=fields) if kind == PAUSE_OVER:
                why = f"{message.worker} continued by itself, {fields.get('why', '')}"
            case _:
                return []
        if self.making:
            self.give_up(self._undone())
        return self.end(why)

    def _left_it(self, worker: str, now_ns: int) -> str:
        row = self._fleet.row_of[worker]
        paused, state = self._paused[worker], self._fleet.state[row]
        seen_ns = self._fleet.last_seen_ns(row)
        if state in ("draining", "left"):
            del self._paused[worker]
            return ""
        if self._fleet.hello[row].incarnation != paused.incarnation:
            return f"{worker} has ended"
        if state != "paused" and seen_ns > paused.at_ns + _SETTLED_NS:
            return f"{worker} trains again"
        if now_ns > seen_ns + self._stale_ns:
            return f"{worker} sent nothing for {(now_ns - seen_ns) / SECOND_NS:.0f} s"
        return ""

    def _clear(self) -> None:
        self.making = ""
        self._broken = ""
        self._first_ns = 0
        self._expected = set()
        self._paused = {}
        self._steps = {}

    def _changed(self, over: str = "") -> PauseChanged:
        return PauseChanged(verdict=self.verdict, over=over, role=self.role or msgspec.UNSET)

    def _undone(self) -> str:
        """Return a summary of the steps at which groups paused, or that they did not."""
        groups: dict[str, list[str]] = {}
        for worker in sorted(self._expected):
            group = self._fleet.hello[self._fleet.row_of[worker]].group
            paused = self._paused.get(worker)
            if paused is None:
                where = "not paused yet"
            elif paused.at_ns > self._first_ns + _TOGETHER_NS:
                late_s = (paused.at_ns - self._first_ns) / SECOND_NS
                where = f"at step {paused.step}, {late_s:.1f} s later"
            else:
                where = f"at step {paused.step}"
            groups.setdefault(where, []).append(group)
        texts = []
        for where, workers in sorted(groups.items()):
            names = list(dict.fromkeys(workers))
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            verb = "paused" if where.startswith("at") else "is" if len(names) == 1 else "are"
            texts.append(f"{', '.join(names[:_NAMED])}{more} {verb} {where}")
        return f"{', '.join(texts)}: undone, all continue"
