"""A worker of a pipeline: from one generation to the next, and the steps in between."""

import logging
import math
import re
import time
from collections.abc import Mapping

import torch.distributed as dist

from torchloom_core.floor.errors import PipelineError
from torchloom_core.wire.assignment import Copy
from torchloom_core.wire.generations import Begin, Fault, Halt, Stopped
from torchloom_threadlet.experts.peers import Peers
from torchloom_threadlet.layers.layer import Layer
from torchloom_threadlet.pipeline.adapter import PipelineAdapter
from torchloom_threadlet.pipeline.boundaries import Values, boundaries, described
from torchloom_threadlet.pipeline.checkpoints import Moment, PipelineCheckpoints
from torchloom_threadlet.pipeline.copying import copy
from torchloom_threadlet.pipeline.expert_parts import Experts
from torchloom_threadlet.pipeline.generation import Batch, Generation, vote
from torchloom_threadlet.pipeline.group import Group
from torchloom_threadlet.pipeline.layers import Program
from torchloom_threadlet.pipeline.messages import Messages
from torchloom_threadlet.pipeline.rendezvous_link import Link
from torchloom_threadlet.pipeline.user_code import first_cause, of_the_user
from torchloom_threadlet.pipeline.warm_up import warm_up

_log = logging.getLogger(__name__)
_INPUTS, _STANDING, _CHECKPOINTS = "inputs", "standing", "checkpoints"  # keys in the store
_MEASURED = 20  # steps


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
        self.committed = checkpoints.step if checkpoints is not None else -1
        self.losses: tuple[float, ...] = (math.nan,) * program.replicas
        self.held: dict[int, Layer] = {}
        self.clip_norm = 0.0
        self.number = 0
        self._spare: dict[int, Layer] = {}
        """Held before, without a part in this generation; others may not have their copies yet."""
        self._program, self._name, self._link, self._group = program, name, link, group
        self._adapter, self._checkpoints = adapter, checkpoints
        self._begin: Begin | None = None
        self._running: Generation | None = None
        self._last: Generation | None = None
        """Of a generation that is over: the gradients of step ``_reduced``."""
        self._reduced = -1
        self._reduced_in = 0
        self._reduced_losses = self.losses
        self._is_behind = True
        """Whether it takes over the others' knobs with its layers."""
        self._shapes: tuple[Values, ...] = ()
        self._inputs = self._save_name = ""
        self._layer_s: dict[int, float] = {}
        self._measured = 0
        self._is_warm = False
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
                    if self._checkpoints is not None and self._checkpoints.is_due(self.committed):
                        self._adapter.save_step = self.committed
                    self.save_if_asked()
                    self._train(batch)
                    return True
            except RuntimeError as error:
                self._fault(error)

    def save(self) -> None:
        """Save the last committed step; called by all workers after it."""
        self._adapter.save_step = self.committed
        self.save_if_asked()

    def save_if_asked(self) -> None:
        """Begin to save this worker's part, once for each generation that begins at that step.

        Otherwise the part of a worker that has ended meanwhile would be missing.
        """
        running, checkpoints = self._running, self._checkpoints
        if checkpoints is None or running is None or self.committed < 0:
            return
        if self._adapter.save_step != self.committed:
            return
        moment = Moment(self.committed, running.assignment, self._save_name)
        checkpoints.save(moment, self._name, self.held, self._adapter.save())

    def _train(self, batch: Batch) -> None:
        running, step, began_s = self._running, self.committed + 1, time.perf_counter()
        assert running is not None
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
            self._stop()
        else:
            running.experts.mirror(step)

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
        reason = _short(cause)
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
                layers=tuple(sorted(self.held if self._reduced >= 0 else self._has())),
                experts=experts.held(only_own=self._reduced >= 0),
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
            if self._name in _members(begin):
                self._begin = begin
                return True
            self.held, self._spare, self._last, self._reduced = {}, {}, None, -1
            self._is_behind = True

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
            inputs, _ = batch(0)
            self._learn(described(inputs, self._program.micro_batches, "batch"))
            warm_up(self._program, self._shapes)

    def _enter(self, batch: Batch) -> None:
        """Form the group of a generation, and get the layers that are missing."""
        begin, members = self._begin, _members(self._begin)
        assert begin is not None
        assignment = begin.assignment
        mine = assignment.layers_of(self._name)
        missing = {layer: self._new_layer(layer) for layer in mine if layer not in self._has()}
        self._group.form(self.number, begin.store, members, self._name)
        self._exchange_inputs(begin, batch)
        self._inherit(begin.copies)
        for layer in copy(begin.copies, self._name, members, self._messages, self._has(), missing):
            self.held[layer] = missing.pop(layer)
        if missing and self.committed >= 0:
            self._load(missing)
        self.held |= missing
        self._adapter.look_again()
        self._name_checkpoints(members[0])
        has = self._has()
        self.held = {layer: has.pop(layer) for layer in mine}
        self._spare = has
        peers = Peers(dist.group.WORLD, self._group.wait)
        with of_the_user():
            Experts(self.held.values()).enter(begin, self._name, peers)
        self._running = Generation(
            self._program, assignment, self._name, self.held, self._shapes, self._messages
        )
        self._is_warm = True

    def _name_checkpoints(self, first: str) -> None:
        """Agree on what this generation's checkpoints are called."""
        checkpoints = self._checkpoints
        if first == self._name:
            name = checkpoints.new_name() if checkpoints is not None else ""
            self._group.store.set(_CHECKPOINTS, name)
        if checkpoints is not None:
            self._save_name = self._group.get(_CHECKPOINTS).decode()

    def _load(self, missing: Mapping[int, Layer]) -> None:
        """Load the layers with which a new run begins from its checkpoint."""
        if self._checkpoints is None or self._checkpoints.step != self.committed:
            raise PipelineError(f"{self._name}: need a copy of layers {sorted(missing)}")
        with of_the_user():
            for layer in missing.values():
                self._checkpoints.load(layer)

    @property
    def trained(self) -> list[Layer]:
        """The layers and experts that it has, each with its optimizer."""
        return [*self.held.values(), *Experts(self.held.values()).own]

    def _has(self) -> dict[int, Layer]:
        return {**self._spare, **self.held}

    def _new_layer(self, number: int) -> Layer:
        with of_the_user():
            return self._program.layer(number)

    def _exchange_inputs(self, begin: Begin, batch: Batch) -> None:
        """Learn the shape of a micro-batch from the worker with the first stage."""
        if begin.assignment.routes[0][0].worker == self._name:
            if not self._inputs:
                with of_the_user():
                    inputs, _ = batch(0)
                    self._learn(described(inputs, self._program.micro_batches, "batch"))
            self._group.store.set(_INPUTS, self._inputs)
        elif not self._inputs:
            self._learn(self._group.get(_INPUTS).decode())

    def _learn(self, inputs: str) -> None:
        if inputs != self._inputs:
            with of_the_user():
                self._shapes = boundaries(self._program, inputs)
            self._inputs = inputs

    def _inherit(self, copies: tuple[Copy, ...]) -> None:
        """Take over the knobs, before the layers, from the worker that sends the first of them."""
        if self._name in [one.source for one in copies]:
            self._group.store.set(f"{_STANDING}/{self._name}", self._adapter.standing())
        sources = [one.source for one in copies if one.target == self._name]
        if self._is_behind and sources:
            standing = self._group.get(f"{_STANDING}/{sources[0]}")
            self._adapter.take_over(standing.decode())
        self._is_behind = False


def _short(error: BaseException) -> str:
    """Return gloo's reason without its source file, and without its advice."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[\S*\] ", "", line).split(". ")[0][:200]


def _members(begin: Begin | None) -> tuple[str, ...]:
    """Return the workers of the group, by rank: those with a part, and sources of copies."""
    if begin is None:
        return ()
    sources = (copy.source for copy in begin.copies)
    return tuple(dict.fromkeys([*begin.assignment.workers, *sources]))
