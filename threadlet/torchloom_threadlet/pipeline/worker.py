"""A worker of a pipeline: from one generation to the next, and the steps in between."""

import contextlib
import logging
import math
import time

import torch.distributed as dist

from torchloom_core.floor.errors import CheckpointError, PipelineError
from torchloom_core.wire.generations import Begin, Fault, Halt, Stopped
from torchloom_threadlet.experts.peers import Peers
from torchloom_threadlet.layers.layer import Layer
from torchloom_threadlet.pipeline.adapter import PipelineAdapter
from torchloom_threadlet.pipeline.checkpoints import PipelineCheckpoints
from torchloom_threadlet.pipeline.copying import copy
from torchloom_threadlet.pipeline.expert_parts import Experts
from torchloom_threadlet.pipeline.generation import Batch, Generation, vote
from torchloom_threadlet.pipeline.group import Group, reason_of
from torchloom_threadlet.pipeline.inputs import Inputs
from torchloom_threadlet.pipeline.layers import Program
from torchloom_threadlet.pipeline.messages import Messages
from torchloom_threadlet.pipeline.rendezvous_link import Link
from torchloom_threadlet.pipeline.saving import Saving
from torchloom_threadlet.pipeline.user_code import first_cause, of_the_user
from torchloom_threadlet.pipeline.warm_up import warm_up

_log = logging.getLogger(__name__)
_KNOBS, _PARTED = "knobs", "parted"  # keys in a generation's store
_MEASURED = 20  # steps
_RETIRES_S, _MEETS_S, _STORES_S, _PARTS_S = 10.0, 10.0, 550.0, 1.0


class Worker:
    """What a worker holds, and what it does in the present generation.

    Attributes
    ----------
    committed : int
        The last step that it has committed, -1 before the first.
    losses : tuple of float, (replicas,)
        Of that step; NaN if it was committed by others.
    held : dict of int to Layer
        The layers that it has whole, as of ``committed``.
    clip_norm : float
        The largest norm of all layers' gradients; 0: no clipping.
    """

    def __init__(
        self,
        program: Program,
        name: str,
        link: Link,
        group: Group,
        adapter: PipelineAdapter,
        checkpoints: PipelineCheckpoints | None = None,
    ) -> None:
        self.saving = Saving(checkpoints, adapter, name)
        self.committed = self.saving.step
        self.losses: tuple[float, ...] = (math.nan,) * program.replicas
        self.held: dict[int, Layer] = {}
        self.clip_norm = 0.0
        self.number = 0
        self._spare: dict[int, Layer] = {}
        """Held before, and not needed now; until a step is committed, others may have no copy."""
        self._program, self._name, self._link, self._group = program, name, link, group
        self._adapter = adapter
        self._begin: Begin | None = None
        self._running: Generation | None = None
        self._last: Generation | None = None
        """Of a generation that is over: the gradients of step ``_reduced``."""
        self._reduced = -1
        self._reduced_in = 0
        self._reduced_losses = self.losses
        self._is_behind = True
        """Whether it takes over the others' knobs with its next part."""
        self._knobs_as_of = 0
        self._inputs = Inputs(program)
        self._layer_s: dict[int, float] = {}
        self._measured = 0
        self._is_warm = self._retires = False
        self._messages = Messages(group.wait)

    def is_called(self) -> bool:
        """Return whether this worker has to leave a generation, or to form one."""
        return self._running is None or self._group.is_over

    def step(self, batch: Batch) -> bool:
        """Commit the next step, however many generations that takes.

        Returns
        -------
        bool
            False if all others have finished, and this worker had no part; or if it has been
            drained in a pause.

        Raises
        ------
        PipelineError
            If the program cannot go on.
        """
        before = self.committed
        while True:
            try:
                if self._running is None:
                    if self._begin is None and not self._wait_for_part(batch):
                        return False
                    if self.committed > before:  # the script may be done with that
                        return True
                    self._enter(batch)
                else:
                    if not self._adapter.rest():
                        return False
                    self._group.check()
                    self._save()
                    self._train(batch)
                    return True
            except RuntimeError as error:
                self._fault(error)

    def refuse_to_leave(self) -> None:
        """Raise PipelineError if a layer would be lost without this worker."""
        running = self._running
        if running is None:
            return
        alone = [n for n in self.held if running.assignment.holders(n) == (self._name,)]
        if alone:
            raise PipelineError(f"it cannot leave: no other worker holds layers {alone}")

    def retire(self, batch: Batch) -> None:
        """Take part until the others go on without this worker, with the commit of a step."""
        if self._running is None or self._adapter.is_in_pause:
            return
        self._retires, number, end_s = True, self.number, time.monotonic() + _RETIRES_S
        self._link.retire()
        while self.number == number and time.monotonic() < end_s and self.step(batch):
            self._adapter.follow()

    def save(self) -> None:
        """Save the last committed step; called by all workers after it."""
        self.saving.ask(self.committed)
        self._save()

    def _save(self) -> None:
        running, committed = self._running, self.committed
        if running is not None and self.saving.is_asked(committed):
            self.saving.save(committed, running.assignment, self.held)

    def meet(self, name: str) -> None:
        """Wait until all workers of the generation have called this for ``name``.

        Raises
        ------
        RuntimeError
            If the generation is over, or a worker does not come.
        """
        self._gather(name, "", _MEETS_S)

    def store(self, name: str) -> None:
        """Save the last committed step, and return once all workers have stored it.

        Raises
        ------
        CheckpointError
            On all workers, if it is not stored on one of them.
        RuntimeError
            As :meth:`meet` does.
        """
        self.save()
        why = self.saving.wait()
        if problem := next(filter(None, self._gather(name, why, _STORES_S)), ""):
            raise CheckpointError(problem)

    def _gather(self, name: str, text: str, at_most_s: float) -> list[str]:
        if self._running is None:
            raise RuntimeError("workers are between two generations")
        members = self._running.assignment.workers
        return self._group.gather(name, self._name, text, members, at_most_s)

    def _train(self, batch: Batch) -> None:
        running, step, began_s = self._running, self.committed + 1, time.perf_counter()
        assert running is not None
        running.experts.mirror(self.committed)
        is_done = False
        while not is_done:
            losses = running.compute(step, batch)
            running.reduce()
            shared = running.share(losses, self._adapter.ballot())
            is_done = not self._adapter.count(shared.ballots)
        running.reduction.clip(shared.grad_norm, self.clip_norm)
        self._reduced_losses, self._reduced_in = shared.losses, self.number
        self._reduced, self._last = step, running
        stop = vote(self._messages, step, self._link.asked_for)
        self._commit()
        self._layer_s.update(running.layer_s)
        self._measured += 1
        whole_s = max(time.perf_counter() - began_s, running.computed_s)
        self._adapter.measured(
            {"grad_norm": shared.grad_norm, "compute_share": running.computed_s / whole_s}
        )
        if stop > self.number:
            with contextlib.suppress(RuntimeError):  # all have the outcome before one cuts
                self._gather(_PARTED, "", _PARTS_S)
            self._stop()

    def _commit(self) -> None:
        """Apply the gradients of the step that is reduced."""
        assert self._last is not None
        with of_the_user():
            self._last.commit()
        self._adapter.committed(self._reduced_in)
        self.committed, self.losses = self._reduced, self._reduced_losses
        state = self._last.experts.state()
        self._reduced, self._last, self._spare = -1, None, {}
        self._link.progress(self.number, self.committed, self._seconds(), state)

    def _fault(self, error: RuntimeError) -> None:
        """Leave the present generation after an error of a send, receive or collective."""
        cause = first_cause(error)
        reason = reason_of(cause)
        _log.info("generation %d: %s", self.number, reason)
        for one in (error, cause):  # a traceback holds the group, and with that its connections
            one.__traceback__ = None
        self._link.report(Fault(generation=self.number, detail=reason))
        self._link.wait_for_end(self.number)
        self._stop()

    def _stop(self) -> None:
        """Leave the present generation, and report what is held."""
        self._running = self._begin = None
        self._messages.forget()
        self._group.leave()
        experts = Experts(self._has().values())
        experts.leave()
        self._link.report(
            Stopped(
                generation=self.number,
                committed=self.committed,
                reduced=self._reduced,
                layers=tuple(sorted(self.held)),
                spare=tuple(sorted(self._spare.keys() - self.held.keys())),
                experts=experts.held(only_own=self._reduced >= 0),
                knobs_as_of=self._knobs_as_of,
                layer_s=self._seconds(),
                expert_state=experts.state(),
            )
        )

    def _seconds(self) -> tuple[float, ...]:
        """Return the seconds of each layer, once they do not rest on a few steps alone."""
        if self._measured < _MEASURED:
            return ()
        count = len(self._program.layers)
        return tuple(self._layer_s.get(layer, 0.0) for layer in range(count))

    def _wait_for_part(self, batch: Batch) -> bool:
        """Wait for a generation with a part for this worker, and roll forward to its step."""
        while True:
            if not self._is_warm and not self._link.has_begun_after(self.number):
                self._stand_by(batch)
            begin = self._link.begin_after(self.number)
            if isinstance(begin, Halt):
                if begin.status == "finished":
                    return False
                raise PipelineError(f"{self._name}: {begin.why}")
            self.number = begin.assignment.generation
            self._roll_forward(begin.committed)
            self._link.progress(self.number, self.committed)
            self._adapter.place(begin.assignment, self._name)
            if self._name in begin.assignment.workers:
                self._begin = begin
                return True
            self._spare, self.held = {} if begin.assignment.experts else self._has(), {}
            self._is_behind = True
            if self._retires:
                return False

    def _roll_forward(self, committed: int) -> None:
        if committed == self._reduced and committed == self.committed + 1:
            self._commit()
        else:
            self._adapter.dropped()
            if committed != self.committed:
                self.held, self._spare, self.committed = {}, {}, committed
                self.losses = (math.nan,) * self._program.replicas
                self._is_behind = True
        self._reduced, self._last = -1, None

    def _stand_by(self, batch: Batch) -> None:
        """Make the first step in a later generation as fast as the others' steps."""
        self._is_warm = True
        with of_the_user():
            self._inputs.look(batch)
            warm_up(self._program, self._inputs.shapes)

    def _enter(self, batch: Batch) -> None:
        """Form the group of a generation, and get the layers that are missing."""
        begin = self._begin
        assert begin is not None
        assignment, members = begin.assignment, begin.assignment.workers
        mine = assignment.layers_of(self._name)
        there = set(self._has()) - {one.layer for one in begin.copies if one.target == self._name}
        missing = {layer: self._new_layer(layer) for layer in mine if layer not in there}
        self._group.form(self.number, begin.store, members, self._name)
        self._inputs.exchange(
            self._group, batch, is_first=assignment.routes[0][0].worker == self._name
        )
        self._inherit(begin.knobs_of)
        for layer in copy(begin.copies, self._name, members, self._messages, self._has(), missing):
            self.held[layer] = missing.pop(layer)
        if missing and self.committed >= 0:
            with of_the_user():
                self.saving.load(self.committed, missing)
        self.held |= missing
        self.saving.begin(self._group, is_first=members[0] == self._name)
        has = self._has()
        self.held = {layer: has.pop(layer) for layer in mine}
        self._spare = has
        peers = Peers(dist.group.WORLD, self._group.wait)
        with of_the_user():
            Experts(self.held.values()).enter(begin, self._name, peers)
        self._running = Generation(
            self._program, assignment, self._name, self.held, self._inputs.shapes, self._messages
        )
        self._is_warm = True

    @property
    def trained(self) -> list[Layer]:
        """The layers and experts that it has, each with its optimizer."""
        return [*self.held.values(), *Experts(self.held.values()).own]

    def _has(self) -> dict[int, Layer]:
        return {**self._spare, **self.held}

    def _new_layer(self, number: int) -> Layer:
        with of_the_user():
            return self._program.layer(number)

    def _inherit(self, knobs_of: str) -> None:
        """Take over the knobs and the pause, before the layers, of that member."""
        if knobs_of == self._name:
            self._group.store.set(_KNOBS, self._adapter.standing())
        elif knobs_of and self._is_behind:
            self._adapter.take_over(self._group.get(_KNOBS).decode())
        self._is_behind, self._knobs_as_of = False, self.number
