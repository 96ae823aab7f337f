"""The adapter for pipelines: ballots travel with a step's losses, and take effect with its commit.

Nobody votes for a step before all workers have all of its ballots. So a worker that commits a step
later, from the gradients that it keeps, knows what was agreed on: a change is made by all workers
at one step, or by none, whichever of them end.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from torchloom_core.wire.assignment import Assignment
from torchloom_core.wire.limits import KnobValue
from torchloom_threadlet.adapter import Adapter
from torchloom_threadlet.fence.agreement import NOTHING, Ballot, read_minima

_NO_BALLOT = Ballot(NOTHING, NOTHING, NOTHING, NOTHING).minima()
_LAST = 2**62
"""Above the number of any change."""


class Inherited(msgspec.Struct, frozen=True):
    """What a worker takes over with its first layers, as JSON.

    Attributes
    ----------
    standing : str
        The knobs, and the pending change.
    reported : dict of str to knob value
        The knobs as they were set or registered: a schedule may have moved them since.
    pause : str
        What has the others pause, "" for nothing.
    is_suspended : bool
        Whether that is a suspension.
    save : int
        The step that the others save, if it is the present one.
    """

    standing: str
    reported: dict[str, KnobValue] = {}
    pause: str = ""
    is_suspended: bool = False
    save: int = -1


class PipelineAdapter(Adapter):
    """The ballots of one worker of a pipeline, and its place in the assignment.

    Attributes
    ----------
    has_left : bool
        Whether the worker was drained.
    is_in_pause : bool
        Whether a command has come in the pause at the present step.
    save_step : int
        The last step for which a checkpoint was requested, -1 for none.
    """

    framework = "pipeline"

    def __init__(self) -> None:
        self.has_left = False
        self.save_step = -1
        self._figures: dict[str, float] = {}
        self.is_in_pause = False
        self._refuse_to_leave: Callable[[], object] = lambda: None
        self._meet: Callable[[str], object] = lambda name: None
        self._is_closed = False

    def rejoin(self) -> None:
        """Return at once: the rendezvous has workers wait for a part."""

    def begin(
        self,
        step: int,
        is_called: Callable[[], bool],
        refuse_to_leave: Callable[[], object],
        meet: Callable[[str], object],
    ) -> None:
        """Vote from now on.

        Parameters
        ----------
        is_called : callable
            ``is_called()`` is true while the pipeline needs a worker that is paused.
        refuse_to_leave : callable
            Raises if this worker must not leave.
        meet : callable
            ``meet(name)`` waits until all workers, which are paused, have called it.
        """
        self.worker.step = step
        self._refuse_to_leave, self._meet = refuse_to_leave, meet
        self.worker.meet = self._take_part_in_pause
        self.worker.is_called = is_called
        self.worker.changes.can_vote = True
        self.worker.starting.built()
        self.worker.announce()

    def measured(self, figures: Mapping[str, float]) -> None:
        """Take the metrics of the step that is over."""
        self._figures = dict(figures)

    def _take_part_in_pause(self, name: str) -> None:
        self.is_in_pause = True
        if self.worker.lease.is_held:  # what follows is done by all
            self._meet(name)

    def boundary(self, step: int | None) -> tuple[int | None, Mapping[str, Any]]:
        """Return the step's number and its metrics."""
        self.is_in_pause = False
        return step, self._figures

    def leave(self) -> None:
        """Give up the part, unless layers would be lost; where all are suspended, all leave."""
        if not self.worker.lease.is_held:
            self._refuse_to_leave()
        self.has_left = True

    def follow(self) -> None:
        """Set knobs like the others, in the last steps of a worker that has left."""
        self.worker.make_due(knobs_only=True)

    def close(self) -> None:
        """Vote for nothing more."""
        if not self._is_closed:
            self._is_closed = True
            self.worker.changes.can_vote = False
            self.worker.changes.withdraw(_LAST)

    def ballot(self) -> tuple[int, ...]:
        """Return this worker's part of the minima of all ballots."""
        if self._is_closed:
            return _NO_BALLOT
        return self.worker.changes.vote(time.time_ns()).minima()

    def count(self, minima: Sequence[int]) -> bool:
        """Take the minima of all ballots; return whether to compute the step again.

        That is so if some worker could not make the last change, and others have computed this
        step with it: all have undone it now.
        """
        least, largest = read_minima(tuple(minima))
        if self._is_closed:
            return least.undone != largest.undone
        self.worker.changes.count(least, largest)
        if self.worker.changes.must_undo:
            self.worker.set_back()
        return least.undone != largest.undone

    def committed(self, generation: int) -> None:
        """Have the agreed change made at the boundary after a step of this generation."""
        self.worker.changes.end_step(generation)
        self.worker.has_pending |= self.worker.changes.due is not None

    def dropped(self) -> None:
        """Forget what was agreed on for a step that nobody has committed."""
        self.worker.changes.end_step(None)

    def standing(self) -> str:
        """Return what a worker that takes a part takes over."""
        worker = self.worker
        standing = worker.changes.standing(worker.actuators.fenced_values())
        pause = worker.lease.cause if worker.state == "paused" else ""
        reported = worker.actuators.values
        found = Inherited(standing, reported, pause, worker.lease.is_held, self.save_step)
        return msgspec.json.encode(found).decode()

    def take_over(self, text: str) -> None:
        """Set the knobs as the others have them, before the first own step.

        Raises
        ------
        SystemExit
            If one cannot be set: this worker must not continue.
        """
        worker, inherited = self.worker, msgspec.json.decode(text, type=Inherited)
        worker.take_over(inherited.standing)
        for name, value in inherited.reported.items():  # the layers' optimizers bring the present
            worker.actuators.hold(name, value)
        worker.announce()
        self.save_step = inherited.save
        if inherited.is_suspended:
            worker.suspend(inherited.pause)
        elif inherited.pause and not worker.is_pause_over(inherited.pause):
            worker.pause(inherited.pause)

    def rest(self) -> bool:
        """Wait while the worker is paused and not called; return whether it still takes part."""
        if self.worker.state != "paused":
            return True
        self.worker.execute_pending()
        return self.worker.going

    def place(self, assignment: Assignment, name: str) -> None:
        """Report the worker's stage in this generation; without a part it waits to join."""
        stages = (
            number
            for route in assignment.routes
            for number, stage in enumerate(route)
            if stage.worker == name
        )
        worker, stage = self.worker, next(stages, None)
        placement = msgspec.structs.replace(
            worker.identity.placement, stage=stage or 0, generation=assignment.generation
        )
        worker.identity = msgspec.structs.replace(worker.identity, placement=placement)
        worker.announce()
        if stage is None and worker.state in ("training", "paused"):
            worker.enter("joining")
        # With a part it trains from its next step on, which is found out there.
        worker.has_pending |= stage is not None and worker.state == "joining"
