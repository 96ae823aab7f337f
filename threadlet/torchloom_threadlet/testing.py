"""The contract tests of an adapter, and of a capability's trainer side, for anyone's tests.

::

    class TestMine(AdapterContract):
        @contextmanager
        def ranks(self, count):
            looms = [attach(group=f"g{rank}", adapter=Mine(...)) for rank in range(count)]
            yield [Rank(loom, loom.step) for loom in looms]

    class TestFlush(TrainerCapabilityContract):
        part, operation = FlushPart, Flush()
"""

import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar

from torchloom_core.wire.commands import Ack, Command
from torchloom_core.wire.operations import Drain, FencedChange, Operation, SetKnobs
from torchloom_threadlet import attach
from torchloom_threadlet.capability import TrainerPart
from torchloom_threadlet.installed_parts import GROUP, installed_parts, verb_of
from torchloom_threadlet.loom import Loom

__all__ = ["AdapterContract", "Rank", "TrainerCapabilityContract"]

_KNOB = "contract"
_LIFE_NS = 60_000_000_000
_ROUNDS = 50
"""More steps than any framework needs to agree."""


class Rank:
    """A rank of a run in one process, with a run-fenced knob; no Weaver takes part.

    Parameters
    ----------
    loom : Loom
        Attached without a Weaver.
    step : callable
        Makes a step of the framework, calls ``loom.step``, and returns what that returned. It is
        called in a thread for each rank, always the same.
    """

    def __init__(self, loom: Loom, step: Callable[[], bool]) -> None:
        self.loom, self.step = loom, step
        self.value, self.values = 1, list[int]()
        self._acks: list[Any] = []
        self._thread = ThreadPoolExecutor(1)
        loom.adapter.worker.send = self._acks.append  # type: ignore[assignment,method-assign]
        put = partial(setattr, self, "value")
        loom.knob(_KNOB, lambda: self.value, put, kind="int", low=1, high=9, fence="run")

    def begin(self) -> Any:
        """Make a step, and return its future result."""
        self.values.append(self.value)
        return self._thread.submit(self.step)

    def deliver(self, do: Operation, command: str) -> None:
        """Deliver a command, as the Weaver would."""
        worker, now_ns = self.loom.adapter.worker, time.time_ns()
        worker.deliver(
            Command(
                id=command,
                run="run",
                worker=self.loom.worker,
                incarnation=worker.identity.incarnation,
                epoch=1,
                issued_ns=now_ns,
                deadline_ns=now_ns + _LIFE_NS,
                do=do,
            )
        )

    def ack(self, command: str) -> tuple[str, int]:
        """Return the status of a command, and its step."""
        ack = self.last_ack(command)
        return ack.status, ack.step

    def last_ack(self, command: str) -> Ack:
        """Return the last ack of a command."""
        return [ack for ack in self._acks if isinstance(ack, Ack) and ack.command == command][-1]


class AdapterContract:
    """Subclass it as ``class TestMyAdapter(AdapterContract)`` and pytest runs it.

    Attributes
    ----------
    agrees : bool
        Whether its ranks can make a change at one step; set it False for one that cannot.
    """

    agrees: ClassVar[bool] = True

    def ranks(self, count: int) -> AbstractContextManager[Sequence[Rank]]:
        """Return so many ranks of one run that are about to make a step together."""
        raise NotImplementedError

    def test_a_fenced_change_is_made_at_one_step_on_all_ranks(self) -> None:
        """Check that ranks that got a change at different steps make it at the same one."""
        with self.ranks(2) as ranks:
            _step(ranks)
            for rank in ranks:
                rank.deliver(FencedChange(number=1, do=SetKnobs(values={_KNOB: 2})), "c1")
                _step(ranks)
            if not self.agrees:
                assert [rank.ack("c1")[0] for rank in ranks] == ["rejected"] * 2
                return
            _until(ranks, lambda: all(rank.value == 2 for rank in ranks))
            _step(ranks)
            acks = {rank.ack("c1") for rank in ranks}
            assert [status for status, _ in acks] == ["applied"], f"need one step, was {acks}"
            assert ranks[0].values == ranks[1].values, "need the same values in each step"

    def test_a_drained_rank_leaves_after_its_step(self) -> None:
        """Check that a drain ends the step in progress and the worker, once on all its ranks."""
        with self.ranks(2) as ranks:
            _step(ranks)
            drain = FencedChange(number=1, do=Drain()) if self.agrees else Drain()
            for rank in ranks:
                rank.deliver(drain, "c1")
            going = _until(ranks, lambda: any(rank.loom.state == "left" for rank in ranks))
            assert going == [False, False], f"need False from loom.step, was {going}"
            acks = {rank.ack("c1") for rank in ranks}
            assert [status for status, _ in acks] == ["applied"], f"need one step, was {acks}"

    def test_a_restored_rank_takes_over_step_and_knobs(self) -> None:
        """Check ``restore`` of what ``save`` of another rank returned."""
        with self.ranks(2) as ranks:
            _step(ranks)
            ranks[0].value = 3
            state = ranks[0].loom.state_dict()
            ranks[1].loom.load_state_dict(state)
            assert ranks[1].value == 3, f"need the saved knob, was {ranks[1].value}"
            assert ranks[1].loom.state_dict() == state, "need the saved step and knobs"

    def test_an_error_of_the_adapter_does_not_end_training(self) -> None:
        """Check that each method may raise, on one rank, and all continue."""
        with self.ranks(2) as ranks:
            _step(ranks)
            loom = ranks[0].loom
            for name in ("vote", "boundary", "resume", "manage", "rejoin", "close"):
                setattr(loom.adapter, name, _raise)
                assert _step(ranks) == [True, True]
            loom.manage()
            loom.begin()
            loom.close()

    def test_a_failed_leave_fails_the_drain_and_training_continues(self) -> None:
        """Check that a worker that cannot leave reports it and stays."""
        with self.ranks(1) as ranks:
            _step(ranks)
            loom = ranks[0].loom
            loom.on_drain(_raise)
            ranks[0].deliver(Drain(), "c1")
            assert _step(ranks) == [True]
            assert (ranks[0].ack("c1")[0], loom.state) == ("failed", "training")


class TrainerCapabilityContract:
    """Subclass it as ``class TestMyPart(TrainerCapabilityContract)`` and pytest runs it.

    Its package has to be installed, as for a run.

    Attributes
    ----------
    part : type
        The class of the operation's part.
    operation : Operation
        One that a trainer can do.
    """

    part: ClassVar[type[TrainerPart[Any]]]
    operation: ClassVar[Operation]

    def prepare(self, loom: Loom) -> None:
        """Register what else the operation needs, such as a knob."""

    def test_an_entry_point_names_the_part(self) -> None:
        """Check that the installed part of the verb is this one."""
        found = type(installed_parts().get(verb_of(self.operation)))
        assert found is self.part, f"need {self.part} in an entry point of {GROUP}, was {found}"
        assert type(self.operation) is self.part.operation, "need an operation of the part's kind"

    def test_the_verb_is_offered_as_soon_as_the_script_has_what_it_needs(self) -> None:
        """Check the worker's hello, before and after the script registers a function."""
        rank, verb = self._rank(), verb_of(self.operation)
        if not self.part.need:
            return
        assert verb not in rank.loom.adapter.worker.hello().actuators
        rank.loom.on(verb, _nothing)
        assert verb in rank.loom.adapter.worker.hello().actuators

    def test_it_is_refused_in_one_line_without_a_function(self) -> None:
        """Check the rejection, where the part needs a function."""
        if self.part.need:
            ack = self._done(self._rank())
            was = f"was {ack.status}: {ack.detail}; a refusal of one's own calls super().refusal()"
            assert (ack.status, ack.detail) == ("rejected", self.part.need), (
                f"need it rejected with {self.part.need!r}, {was}"
            )
            _check_line(ack.detail)

    def test_it_is_done_once_and_its_detail_is_one_line(self) -> None:
        """Check a command that is delivered three times."""
        rank, calls = self._rank(), list[object]()
        rank.loom.on(verb_of(self.operation), lambda *_: calls.append(None))
        acks = [self._done(rank, command) for command in ("c1", "c1", "c1")]
        assert [ack.status for ack in acks] == ["applied"] * 3, acks[0].detail
        assert len(calls) == (1 if self.part.need else len(calls)), f"was called {len(calls)} times"
        if acks[0].detail:
            _check_line(acks[0].detail)

    def test_it_fails_in_one_line_and_training_continues(self) -> None:
        """Check a function that raises, where the part needs one."""
        rank = self._rank()
        if self.part.need:
            rank.loom.on(verb_of(self.operation), _raise)
            ack = self._done(rank)
            assert ack.status == "failed"
            _check_line(ack.detail)
        assert rank.loom.step(), "need True from loom.step"

    def _rank(self) -> Rank:
        loom = attach(group=f"contract-{secrets.token_hex(4)}")
        self.prepare(loom)
        return Rank(loom, loom.step)

    def _done(self, rank: Rank, command: str = "c1") -> Ack:
        """Deliver a copy of the command, and do what follows; return its last ack."""
        changes = rank.loom.adapter.worker.changes
        if self.part.fenced != "only":
            rank.deliver(self.operation, command)
        else:
            changes.can_vote = True
            rank.deliver(FencedChange(number=1, do=self.operation), command)
            ballot = changes.vote(time.time_ns())
            changes.count(ballot, ballot)
            changes.end_step(1)
            rank.loom.adapter.worker.has_pending = True
        if rank.loom.adapter.worker.going:  # as before a drain
            rank.loom.step()
        return rank.last_ack(command)


def _nothing(*_: Any) -> None:
    pass


def _check_line(text: str) -> None:
    assert text, "need a line, was nothing"
    assert text.isprintable(), f"need one line, was {text!r}"


def _raise(*_: Any, **__: Any) -> Any:
    raise ArithmeticError("on purpose")


def _step(ranks: Sequence[Rank]) -> list[bool]:
    """Make one step of all ranks at once; return whether each continues."""
    return [step.result(_LIFE_NS // 10**9) for step in [rank.begin() for rank in ranks]]


def _until(ranks: Sequence[Rank], is_so: Callable[[], bool]) -> list[bool]:
    """Make steps until something is so; return whether each rank continues."""
    for _ in range(_ROUNDS):
        going = _step(ranks)
        if is_so():
            return going
    raise AssertionError(f"need an agreement within {_ROUNDS} steps, was none")
