"""Fenced changes of one worker: those it is offered, votes for and makes.

The link's thread offers and withdraws; the training thread votes and makes. A peer that heals from
this worker loads its state in a thread of its own. What the ranks agree on, and when, is in
:mod:`torchloom_threadlet.fence`.
"""

import threading
from collections.abc import Callable, Mapping

import msgspec

from torchloom_core.wire.capabilities import Uninstalled, record_decoder
from torchloom_core.wire.commands import AckStatus, Command
from torchloom_core.wire.limits import KnobValue
from torchloom_core.wire.operations import FencedChange
from torchloom_threadlet.fence.agreement import Ballot, Change, Fence, is_split

Settle = Callable[[str, AckStatus, int, str, dict[str, KnobValue] | None], None]
"""``(command id, status, step, detail, knobs before)``: ends a command."""


class Unchanged(Exception):
    """Raised on all ranks by a rewind that has found nothing to load, and changed nothing."""


class Standing(msgspec.Struct, frozen=True):
    """What a healing peer takes over with this rank's state: JSON, in the framework's state dict.

    ``values``, ``before``: the run-fenced knobs, and their values before the last change.
    """

    fence: Fence
    values: dict[str, KnobValue]
    before: dict[str, KnobValue]
    step: int


class Changes:
    """The fence of one worker, and the commands behind its pending changes.

    ``settle``: ends a command; called without this class's lock.
    ``can_vote``: whether an adapter is attached through which this worker agrees with the others.
    ``has_lost_state``: whether a rewind failed halfway, and no peer's state was loaded since.
    ``due``: the change that was agreed on in a committed step, to be made before the next one.
    """

    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        self._lock = threading.Lock()
        self._fence = Fence()
        self._commands: dict[int, Command] = {}
        self._before: dict[str, KnobValue] = {}
        self._step = -1
        self.can_vote = False
        self.has_lost_state = False
        self.due: Change | None = None

    # --- the link's thread ------------------------------------------------------------------

    def offer(self, command: Command, operation: FencedChange) -> None:
        """Take the change that a command offers, in place of an earlier one."""
        change = Change(number=operation.number, do=operation, cause=command.cause)
        with self._lock:
            self._fence = self._fence.offer(change)
            self._commands[operation.number] = command
        self._settle_those_over()

    def withdraw(self, number: int) -> None:
        """Never agree to the change of this number, nor to an earlier one."""
        with self._lock:
            self._fence = self._fence.withdraw(number)
        self._settle_those_over()

    def cancel(self, cause: str) -> None:
        """Withdraw what was offered under a verdict that was cancelled."""
        with self._lock:
            numbers = [n for n, command in self._commands.items() if command.cause == cause]
        if numbers:
            self.withdraw(max(numbers))

    # --- the training thread ----------------------------------------------------------------

    def vote(self, now_ns: int) -> Ballot:
        """Return the ballot for the coming step."""
        with self._lock:
            late = [n for n, command in self._commands.items() if now_ns > command.deadline_ns]
            for number in late:
                self._fence = self._fence.withdraw(number)
            self._fence, own = self._fence.vote()
        if late:
            self._settle_those_over()
        return own

    def count(self, least: Ballot, largest: Ballot) -> bool:
        """Take the least and the largest of all ballots; return whether they can be counted.

        They cannot where ranks differ in state: no rank may reduce anything in that step.
        """
        if is_split(least, largest):
            return False
        with self._lock:
            self._fence = self._fence.count(least, largest)
        return True

    @property
    def must_undo(self) -> bool:
        """Whether to roll back the last change before this step's collectives."""
        return self._fence.must_undo

    @property
    def is_short(self) -> bool:
        """Whether this rank must not commit the step, as it lacks the agreed change."""
        return self._fence.is_short

    @property
    def before(self) -> dict[str, KnobValue]:
        """The knobs' values before the last change."""
        return dict(self._before)

    def undone(self) -> None:
        """Record that the last change was rolled back."""
        with self._lock:
            self._fence = self._fence.undo()

    def end_step(self, quorum_id: int | None) -> None:
        """Forget the step, or make the agreed change due if this quorum committed the step."""
        with self._lock:
            self._fence, change = self._fence.end_step(quorum_id)
            self.due = change or self.due
        self._settle_those_over()  # offers that were needed for this step alone

    def made(self, change: Change, before: Mapping[str, KnobValue], step: int, detail: str) -> None:
        """Record that a change was made, and its knobs' values ``before``."""
        self._before, self._step = dict(before), step
        self._end(change.number, "applied", step, detail, self._before)
        self.due = None  # only now: before, it would count as a peer's
        self._settle_those_over()

    def failed(self, change: Change, step: int, detail: str, *, rolls_back: bool) -> None:
        """Record that a change failed.

        One that ``rolls_back`` is undone here already, and the other ranks do the same.
        """
        if rolls_back:
            with self._lock:
                self._fence = self._fence.fail(change.number)
        self._end(change.number, "failed", step, detail)
        self.due = None
        self._settle_those_over()

    def lose_state(self) -> None:
        """Record that this rank's state is lost: it loads a peer's, or all load one rank's."""
        self.has_lost_state = True
        with self._lock:
            self._fence = self._fence.lose()

    # --- a peer that heals from this worker, and healing from a peer ----------------------------

    def standing(self, values: dict[str, KnobValue]) -> str:
        """Return what a peer takes over with this rank's state."""
        with self._lock:
            standing = Standing(self._fence, values, self._before, self._step)
        return _encoder.encode(standing).decode()

    def inherit(self, text: str) -> dict[str, KnobValue]:
        """Take over a peer's ``standing``; return its knobs' values.

        Raises msgspec.DecodeError if :meth:`standing` of this version cannot have written it.
        """
        peer = _read_standing(text)
        with self._lock:
            self._fence = self._fence.inherit(peer.fence)
            self._before, self._step = peer.before, peer.step
        self.has_lost_state = False
        self._settle_those_over()
        return peer.values

    # --- the commands' ends -----------------------------------------------------------------

    def _settle_those_over(self) -> None:
        """End the commands whose change is no longer pending."""
        with self._lock:
            fence, due = self._fence, self.due
            pending = {c.number for c in (fence.offered, fence.voted, due) if c}
            over = [number for number in self._commands if number not in pending]
        for number in over:
            if number <= fence.undone and number == fence.made:
                self._end(number, "failed", self._step, "rolled back: it failed on another rank")
            elif number <= fence.made:
                self._end(number, "applied", self._step, "taken over from a peer")
            elif number <= fence.let_go:
                self._end(number, "rejected", -1, "withdrawn, or past its deadline")
            else:
                self._end(number, "rejected", -1, "replaced by a later change")

    def _end(
        self,
        number: int,
        status: AckStatus,
        step: int,
        detail: str,
        before: dict[str, KnobValue] | None = None,
    ) -> None:
        with self._lock:
            command = self._commands.pop(number, None)
        if command is not None:
            self._settle(command.id, status, step, detail, before)


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Standing] = record_decoder(Standing)


def _read_standing(text: str) -> Standing:
    """Decode a peer's standing, without pending changes that this rank could not make."""
    peer = _decoder.decode(text)
    lost = [
        name
        for name in ("offered", "voted")
        if (change := getattr(peer.fence, name))
        and change.do
        and isinstance(change.do.do, Uninstalled)
    ]
    fence = msgspec.structs.replace(peer.fence, **dict.fromkeys(lost))
    return msgspec.structs.replace(peer, fence=fence)
