"""The user's handle of a pipeline: a program of layers that may lose workers while it trains."""

import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import torch
from torch import nn
from torch._C._distributed_c10d import Store, TCPStore

from torchloom_core.floor.errors import CheckpointError, ConfigError, PipelineError
from torchloom_core.wire.assignment import Assignment, Stage
from torchloom_core.wire.generations import (
    NO_EXPERTS,
    Begin,
    ExpertState,
    Fault,
    Halt,
    Join,
    Leave,
    Stopped,
)
from torchloom_core.wire.limits import NAME
from torchloom_threadlet.attachment import attach_once
from torchloom_threadlet.identity import PlacementArguments, own_node
from torchloom_threadlet.layers.layer import Layer
from torchloom_threadlet.loom import Loom
from torchloom_threadlet.pipeline.adapter import PipelineAdapter
from torchloom_threadlet.pipeline.checkpoints import PipelineCheckpoints
from torchloom_threadlet.pipeline.generation import Batch
from torchloom_threadlet.pipeline.group import Group
from torchloom_threadlet.pipeline.knobs import register_knobs
from torchloom_threadlet.pipeline.layers import Factory, Loss, Program
from torchloom_threadlet.pipeline.rendezvous_link import Link, RendezvousLink
from torchloom_threadlet.pipeline.user_code import UserCodeError
from torchloom_threadlet.pipeline.worker import Worker

_RENDEZVOUS, _WORKER, _HOST = "TORCHLOOM_RENDEZVOUS", "TORCHLOOM_WORKER", "TORCHLOOM_HOST"
_ALONE = "alone"

_logger = logging.getLogger(__name__)


class Pipeline:
    """One worker of a pipeline; made by :func:`attach`.

    Attributes
    ----------
    loom : Loom
        Its connection to the Weaver, for knobs, operations and notes of the script's own;
        :meth:`step` calls ``loom.step``.
    """

    def __init__(
        self,
        worker: Worker,
        link: Link,
        group: Group,
        store: Store | None,
        loom: Loom,
        checkpoints: PipelineCheckpoints | None,
    ) -> None:
        self._worker, self._link, self._group, self._store = worker, link, group, store
        self.loom, self._checkpoints = loom, checkpoints

    @property
    def steps(self) -> int:
        """How many steps are committed."""
        return self._worker.committed + 1

    @property
    def layers(self) -> dict[int, Layer]:
        """The layers that this worker holds, by number."""
        return dict(self._worker.held)

    @property
    def losses(self) -> tuple[float, ...]:
        """Mean loss of each replica in the last committed step, ``(replicas,)``."""
        return self._worker.losses

    def step(self, batch: Batch) -> float | None:
        """Train one step, and return its mean loss once all workers have committed it.

        If a worker ends meanwhile, the others form the next generation and compute the step
        again. A worker without a part waits here until it gets one.

        Parameters
        ----------
        batch : callable
            ``batch(replica)`` returns the inputs and targets of step ``pipeline.steps``. It is
            called on workers with a first or last stage, also more than once for a step, so it
            must depend on these two numbers alone; and for replica 0 on a worker that waits for
            a part, which warms up with it.

        Returns
        -------
        float or None
            None if the script has to leave its loop: the worker is drained, or had no part when
            all others finished. NaN on a worker that has just got a part, with the state after a
            step that others have made.

        Raises
        ------
        SystemExit
            With the reason and status 1 if no assignment is possible any more, or this worker is
            refused; with status 0 in a loop that continues after the drain.
        """
        if self._has_left:
            _logger.warning("%s has been drained: exiting with status 0", self.loom.worker)
            raise SystemExit(0)
        try:
            has_trained = self._worker.step(batch)
        except UserCodeError as error:
            if isinstance(error.error, CheckpointError):
                raise SystemExit(f"torchloom: {error}") from None
            raise error.error from None
        except PipelineError as error:
            raise SystemExit(f"torchloom: {error}") from None
        if not has_trained:
            return None
        losses = self._worker.losses
        loss = sum(losses) / len(losses)
        self.loom.step(self._worker.committed, loss=loss)
        if not self._has_left:
            return loss
        self._worker.retire(batch)
        return None

    @property
    def _has_left(self) -> bool:
        adapter = self.loom.adapter
        return isinstance(adapter, PipelineAdapter) and adapter.has_left

    def close(self, *, finished: bool = True) -> None:
        """End this worker's part; the last step of all is saved.

        Parameters
        ----------
        finished : bool
            Whether all steps are done; else the others go on without this worker.
        """
        finished = finished and not self._has_left
        if finished:
            self._worker.save()
        self._link.close(Leave(finished=finished, committed=self._worker.committed))
        self._group.leave()
        if finished or self._has_left:
            self.loom.close()
        if self._checkpoints is not None:
            self._checkpoints.wait()

    def __enter__(self) -> Self:
        """Return the pipeline."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it: as finished, unless an error has come."""
        self.close(finished=kind is None)


def attach(
    *,
    layers: Sequence[Factory],
    loss: Loss,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
    replicas: int = 1,
    micro_batches: int = 1,
    seed: int = 0,
    rendezvous: str | None = None,
    worker: str | None = None,
    timeout_s: float = 300.0,
    checkpoints: str | os.PathLike[str] | None = None,
    checkpoint_steps: int = 0,
    checkpoint_keep: int = 3,
    join: str | os.PathLike[str] | None = None,
    **placement: Unpack[PlacementArguments],
) -> Pipeline:
    """Make this process a worker of a pipeline, and of a Weaver's run if there is one.

    It uses torch's default process group. The other parameters are those of :class:`Program`.

    Parameters
    ----------
    rendezvous : str, optional
        ``host:port`` of ``torchloom rendezvous``, else ``TORCHLOOM_RENDEZVOUS``. Without either
        this process computes all layers alone.
    worker : str, optional
        This worker's name, else ``TORCHLOOM_WORKER``, else ``w`` and the ``RANK``. To a Weaver it
        is a replica group of this name.
    timeout_s : float
        After which a send, receive or collective counts as failed.
    checkpoints : path, optional
        A folder or URL that all workers reach. The newest checkpoint there is loaded, if the
        program begins; the last step is saved there, and what ``torchloom checkpoint`` requests.
    checkpoint_steps : int
        Save besides after each so many steps; 0: not.
    checkpoint_keep : int
        The newest complete checkpoints that stay; 0: all.
    join : path, optional
        The Weaver's ``join.json``, as in :func:`torchloom_threadlet.attach`.
    **placement
        The worker's role, node and rack, as there.

    Raises
    ------
    ConfigError
        If a parameter breaks a rule.
    CheckpointError
        If there are checkpoints, and none can be read.
    """
    program = Program(layers, loss, optimizer, scheduler, replicas, micro_batches, seed)
    if program.expert_layers and checkpoints is not None:
        raise ConfigError("checkpoints: need layers without experts: experts are not saved")
    address = rendezvous or os.environ.get(_RENDEZVOUS, "")
    host, _, port = address.rpartition(":")
    if address and not (host and port.isdigit()):
        raise ConfigError(f"rendezvous: need host:port, was {address!r}")
    name = worker or os.environ.get(_WORKER) or f"w{os.environ.get('RANK', '')}"
    if name == "w":
        if address:
            raise ConfigError(f"worker: need a name: set {_WORKER} or RANK, or worker= in attach()")
        name = _ALONE
    if not re.match(NAME, name):
        raise ConfigError(f"worker: need 1 to 64 letters, digits, '_' and '-', was {name!r:.100}")
    adapter, group = PipelineAdapter(), Group(timeout_s)
    own: PlacementArguments = {**placement, "group": name, "rank": 0, "standby": False}
    loom = attach_once(adapter, join, own, is_own_group=True)
    saved, store = None, None
    if checkpoints is not None:
        place = os.fspath(checkpoints)
        saved = PipelineCheckpoints(place, checkpoint_steps, checkpoint_keep, adapter.worker.note)
        saved.check(len(layers))
    if address:
        own_host = os.environ.get(_HOST) or _own_host(host, int(port))
        store = TCPStore(own_host, 0, is_master=True, wait_for_workers=False)
        first = Join(
            worker=name,
            incarnation=time.time_ns() // 1_000_000,
            store=f"{own_host}:{store.port}",
            layers=len(layers),
            expert_layers=program.expert_layers,
            replicas=replicas,
            micro_batches=micro_batches,
            committed=saved.step if saved is not None else -1,
            layer_bytes=program.layer_bytes(),
            node=own_node(placement.get("node"), os.environ),
        )

        def on_stop(generation: int) -> None:
            group.end(generation)
            adapter.worker.wake()

        adapter.worker.cannot_freeze = "the rendezvous would take it for lost"
        link: Link = RendezvousLink(address, first, on_stop)
    else:
        link = _Alone(program, name, saved.step if saved is not None else -1)
    own_part = Worker(program, name, link, group, adapter, saved)
    register_knobs(loom, program, own_part)
    if saved is not None:
        adapter.worker.saves_together = True
        loom.on_checkpoint(own_part.save)
        loom.on("store", own_part.store)
        if saved.shared is not None:
            loom.load_state_dict(saved.shared)
    adapter.begin(own_part.committed, own_part.is_called, own_part.refuse_to_leave, own_part.meet)
    return Pipeline(own_part, link, group, store, loom, saved)


def _own_host(host: str, port: int) -> str:
    """Return the address of this machine on its way to the rendezvous."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError as error:
            raise ConfigError(
                f"rendezvous: {host}:{port} cannot be reached: {error.strerror or error}"
            ) from None
        return str(probe.getsockname()[0])


class _Alone:
    """The rendezvous of a worker that has no other: one generation with all layers."""

    asked_for = 0

    def __init__(self, program: Program, name: str, committed: int) -> None:
        route = (Stage(name, 0, len(program.layers)),)
        assignment = Assignment(
            generation=1,
            layers=len(program.layers),
            routes=(route,) * program.replicas,
            experts=((name,),) * sum(layer.experts for layer in program.expert_layers),
        )
        self._begin = Begin(assignment=assignment, committed=committed, store="")

    def has_begun_after(self, generation: int) -> bool:
        return True

    def begin_after(self, generation: int) -> Begin | Halt:
        if generation:
            return Halt(why="a worker alone has no other generation")
        return self._begin

    def report(self, message: Fault | Stopped) -> None:
        return

    def wait_for_end(self, generation: int) -> None:
        return

    def progress(
        self,
        generation: int,
        committed: int,
        layer_s: tuple[float, ...] = (),
        expert_state: ExpertState = NO_EXPERTS,
    ) -> None:
        return

    def retire(self) -> None:
        return

    def close(self, leave: Leave | None) -> None:
        return
