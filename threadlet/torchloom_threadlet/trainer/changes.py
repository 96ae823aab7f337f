"""The changes that all ranks make at one step: what this worker is offered, votes for and makes.

The link's thread offers and withdraws, the training thread votes and makes; whoever takes this
worker's state has it loaded in whatever thread does that. What the ranks agree on, and when, is in
:mod:`torchloom_threadlet.fence`.
"""

import threading
from collections.abc import Callable, Mapping

import msgspec

from torchloom_core.wire.messages import AckStatus, Command, FencedChange, KnobValue, SetKnobs
from torchloom_threadlet.fence.agreement import Ballot, Change, Fence, is_split

Settle = Callable[[str, AckStatus, int, str], None]
"""``(command id, status, step, detail)`` ends a command."""


class Standing(msgspec.Struct, frozen=True):
    """What a rank gives to whoever takes its state: JSON, in the state dict of the framework.

    Attributes
    ----------
    values, before : dict
        The run-fenced knobs, and what those of the last change were before it.
    step : int
        At which the last change was made.
    """

    fence: Fence
    values: dict[str, KnobValue]
    before: dict[str, KnobValue]
    step: int


class Changes:
    """The fence of one worker, and the commands behind what it holds.

    Parameters
    ----------
    settle : callable
        Ends a command; called with no lock of this class held.

    Attributes
    ----------
    can_vote : bool
        Whether an adapter is attached by which this worker agrees with the others.
    has_lost_state : bool
        Whether half of a rewind was made here, and no peer's state was taken since.
    due : Change, optional
        What was agreed on in a step that is committed, to be made before the next one.
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
        """Hold what a command offers, in the place of what was offered before."""
        change = Change(number=operation.number, do=operation, cause=command.cause)
        with self._lock:
            self._fence = self._fence.offer(change)
            self._commands[operation.number] = command
        self._settle_those_over()

    def withdraw(self, number: int) -> None:
        """Never agree to the change of this number any more, nor to an earlier one."""
        with self._lock:
            self._fence = self._fence.withdraw(number)
        self._settle_those_over()

    def call_off(self, cause: str) -> None:
        """Withdraw what was offered under a verdict that has come to nothing."""
        with self._lock:
            numbers = [n for n, command in self._commands.items() if command.cause == cause]
        if numbers:
            self.withdraw(max(numbers))

    # --- the training thread ----------------------------------------------------------------

    def vote(self, now_ns: int) -> Ballot:
        """Return what to say ahead of a step."""
        with self._lock:
            late = [n for n, command in self._commands.items() if now_ns > command.deadline_ns]
            for number in late:
                self._fence = self._fence.withdraw(number)
            self._fence, own = self._fence.vote()
        if late:
            self._settle_those_over()
        return own

    def count(self, least: Ballot, largest: Ballot) -> bool:
        """Take in the least and the largest of all ballots; return whether they can be counted.

        They cannot where not all ranks have one state: nobody may reduce anything in that step.
        """
        if is_split(least, largest):
            return False
        with self._lock:
            self._fence = self._fence.count(least, largest)
        return True

    @property
    def must_undo(self) -> bool:
        """Whether the last change is to be set back before this step's own collectives."""
        return self._fence.must_undo

    @property
    def is_short(self) -> bool:
        """Whether this rank must not commit the step, as it has not what was agreed on."""
        return self._fence.is_short

    @property
    def before(self) -> dict[str, KnobValue]:
        """What the knobs of the last change were before it."""
        return dict(self._before)

    def undone(self) -> None:
        """Note that the last change was set back."""
        with self._lock:
            self._fence = self._fence.undo()

    def end_step(self, quorum_id: int | None) -> None:
        """Forget the step, or have what was agreed on made if it was committed in this quorum."""
        with self._lock:
            self._fence, change = self._fence.end_step(quorum_id)
            self.due = change or self.due
        self._settle_those_over()  # of those that were held for this step alone

    def made(self, change: Change, before: Mapping[str, KnobValue], step: int, detail: str) -> None:
        """Note that a change was made, where its knobs were ``before``."""
        self._before, self._step = dict(before), step
        self._end(change.number, "applied", step, detail)
        self.due = None  # not before: it would be taken for a peer's
        self._settle_those_over()

    def failed(self, change: Change, step: int, detail: str) -> None:
        """Note that it could not be made.

        What was set of knobs was set back, and the other ranks are to do the same; of anything
        else there is nothing to set back.
        """
        if change.do is not None and isinstance(change.do.do, SetKnobs):
            with self._lock:
                self._fence = self._fence.fail(change.number)
        self._end(change.number, "failed", step, detail)
        self.due = None
        self._settle_those_over()

    def lose_state(self) -> None:
        """Note that this rank's state is none any more: it takes a peer's, or all take one's."""
        self.has_lost_state = True
        with self._lock:
            self._fence = self._fence.lose()

    # --- whoever takes this worker's state, and whose it takes ---------------------------------

    def standing(self, values: dict[str, KnobValue]) -> str:
        """Return what a peer takes over with the state."""
        with self._lock:
            standing = Standing(self._fence, values, self._before, self._step)
        return _encoder.encode(standing).decode()

    def inherit(self, text: str) -> dict[str, KnobValue]:
        """Take over what a peer has said; return the values of its knobs.

        Raises
        ------
        msgspec.DecodeError
            If it is not what :meth:`standing` of this version returns.
        """
        peer = _decoder.decode(text)
        with self._lock:
            self._fence = self._fence.inherit(peer.fence)
            self._before, self._step = peer.before, peer.step
        self.has_lost_state = False
        self._settle_those_over()
        return peer.values

    # --- what becomes of the commands -----------------------------------------------------------

    def _settle_those_over(self) -> None:
        """End the commands of all that is not held any more."""
        with self._lock:
            fence, due = self._fence, self.due
            held = {c.number for c in (fence.offered, fence.voted, due) if c}
            over = [number for number in self._commands if number not in held]
        for number in over:
            if number <= fence.undone and number == fence.made:
                self._end(number, "failed", self._step, "it failed on another rank: set back")
            elif number <= fence.made:
                self._end(number, "applied", self._step, "taken over from a peer")
            elif number <= fence.let_go:
                self._end(number, "rejected", -1, "withdrawn, or past its deadline")
            else:
                self._end(number, "rejected", -1, "a later change took its place")

    def _end(self, number: int, status: AckStatus, step: int, detail: str) -> None:
        with self._lock:
            command = self._commands.pop(number, None)
        if command is not None:
            self._settle(command.id, status, step, detail)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Standing)
