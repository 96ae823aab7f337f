"""Which pause is being made or is in force, and why it must end: for all workers, or for none.

A worker obeys a pause at its own step boundary, so that groups may stop at different steps: one
waits at its boundary, the other in the quorum for it. Such a split is seen here and undone.
The kind of action (:mod:`torchloom_core.kernel.actions.pause`) asks while a pause is made, the
kernel while it is in force; the workers go on by themselves where they do not hear that it is
(:class:`~torchloom_core.wire.messages.PauseState`).
"""

from collections.abc import Iterable

import msgspec

from torchloom_core.clock import SECOND_NS
from torchloom_core.fleet.state import FleetState
from torchloom_core.wire.events import Notice, Output, PauseChanged
from torchloom_core.wire.messages import Ack, Exit, Hello, Note

PAUSE_OVER = "pause_over"
"""Kind of the note by which a worker says that its pause ended by itself."""

_TOGETHER_NS = 1 * SECOND_NS
"""Within which all must have paused: a worker waits 1.5 s to hear that its pause is held."""

_SETTLED_NS = SECOND_NS // 2
"""Telemetry from before a pause may arrive so much later than the ack of it."""

_LOCKSTEP = "torchft"
_NAMED = 3


class _Paused(msgspec.Struct, frozen=True):
    incarnation: int
    step: int
    at_ns: int


class RunPause:
    """The pause of a run.

    Attributes
    ----------
    verdict : str
        The verdict whose pause is in force; empty while none is.
    making : str
        The verdict whose pause is being made; empty while none is.
    """

    def __init__(self, fleet: FleetState, stale_after_s: float) -> None:
        self._fleet = fleet
        self._stale_ns = round(stale_after_s * SECOND_NS)
        self.verdict = ""
        self.making = ""
        self._broken = ""
        self._told = False
        self._first_ns = 0
        self._expected: set[str] = set()
        self._paused: dict[str, _Paused] = {}
        self._steps: set[int] = set()

    @property
    def going_on(self) -> bool:
        """Whether a pause is being made or in force."""
        return bool(self.verdict or self.making)

    # --- while it is made ---

    def make(self, verdict: str, workers: Iterable[str]) -> None:
        """Begin to pause these workers."""
        self.making = verdict
        self._expected = set(workers)

    def give_up(self, why: str) -> None:
        """Have the pause that is being made undone."""
        self._broken = why

    def applied(self, ack: Ack, verdict: str, now_ns: int) -> None:
        """Take note that a worker has paused, as the pause of ``verdict`` told it."""
        if verdict != self.making:
            return
        self._first_ns = self._first_ns or now_ns
        self._paused[ack.worker] = _Paused(ack.incarnation, ack.step, now_ns)
        if self._fleet.hello[self._fleet.row_of[ack.worker]].framework == _LOCKSTEP:
            self._steps.add(ack.step)

    def trouble(self, now_ns: int) -> str:
        """Return why the pause that is being made must be undone, or nothing."""
        if self._broken:
            return self._broken
        # Whoever was the last to pause has just done so: else the pause is being made no more.
        late = bool(self._first_ns) and now_ns - self._first_ns > _TOGETHER_NS
        return self._undone() if late or len(self._steps) > 1 else ""

    def settle(self, trouble: str) -> list[Output]:
        """Put the pause in force that all have obeyed, or call it off for ``trouble``."""
        if trouble:
            over = self.making
            self._clear()
            return [PauseChanged(verdict="", over=over)]
        self.verdict, self.making = self.making, ""
        return [PauseChanged(verdict=self.verdict)]

    # --- while it is in force ---

    def step_text(self) -> str:
        """Return at which step all are paused, as ``at step 10``; nothing where it differs."""
        steps = {paused.step for paused in self._paused.values()}
        return f" at step {steps.pop()}" if len(steps) == 1 else ""

    def end(self, why: str) -> list[Output]:
        """End the pause in force for all, and tell people why if nobody asked for it."""
        if not self.verdict:
            return []
        over, self.verdict = self.verdict, ""
        self._clear()
        held = PauseChanged(verdict="", over=over)
        if not why:
            return [held]
        return [held, Notice(kind=PAUSE_OVER, text=f"the pause is over for all: {why}")]

    def check(self, now_ns: int) -> list[Output]:
        """End the pause in force if a worker of it no longer pauses, or is silent."""
        for worker in list(self._paused) if self.verdict else ():
            why = self._left_it(worker, now_ns)
            if why:
                return self.end(why)
        return []

    def react(self, message: Exit | Note) -> list[Output]:
        """End the pause at once of which a worker says that it does not pause any more."""
        paused = self._paused.get(message.worker)
        if paused is None or paused.incarnation != message.incarnation:
            return []
        match message:
            case Exit(expected=True):
                # It has left on purpose: the others may wait.
                del self._paused[message.worker]
                self._expected.discard(message.worker)
                return []
            case Exit():
                why = f"{message.worker} has ended"
            case Note(kind=kind, fields=fields) if kind == PAUSE_OVER:
                why = f"{message.worker} went on by itself, {fields.get('why', '')}"
            case _:
                return []
        if self.making:
            self.give_up(self._undone())
        return self.end(why)

    def stray(self, hello: Hello) -> list[Output]:
        """Tell once of a worker that is paused and that no Weaver holds: an earlier one did."""
        if hello.state != "paused" or self.going_on or self._told:
            return []
        self._told = True
        text = f"{hello.worker} is still paused by a pause that is over: it goes on by itself"
        return [Notice(kind=PAUSE_OVER, text=text, worker=hello.worker)]

    def _left_it(self, worker: str, now_ns: int) -> str:
        row = self._fleet.row_of[worker]
        paused, state = self._paused[worker], self._fleet.state[row]
        heard_ns = self._fleet.heard_ns_of(row)
        if state in ("draining", "left"):
            del self._paused[worker]
            return ""
        if self._fleet.hello[row].incarnation != paused.incarnation:
            return f"{worker} has ended"
        if state != "paused" and heard_ns > paused.at_ns + _SETTLED_NS:
            return f"{worker} trains again"
        if now_ns > heard_ns + self._stale_ns:
            return f"nothing was heard of {worker} for {(now_ns - heard_ns) / SECOND_NS:.0f} s"
        return ""

    def _clear(self) -> None:
        self.making = ""
        self._broken = ""
        self._first_ns = 0
        self._expected = set()
        self._paused = {}
        self._steps = set()

    def _undone(self) -> str:
        """Say which groups paused at which steps, and which did not, in a few words."""
        groups: dict[str, list[str]] = {}
        for worker in sorted(self._expected):
            group = self._fleet.hello[self._fleet.row_of[worker]].group
            paused = self._paused.get(worker)
            if paused is None:
                where = "still at it"
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
        return f"{', '.join(texts)}: undone, all go on"
