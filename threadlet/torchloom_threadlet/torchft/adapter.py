"""The loom of a torchft script: its step, its quorum, its errors and its connections."""

import logging
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torchloom_core.wire.steering import name_of_replica
from torchloom_threadlet.compression import CompressedProcessGroup, allreduce_knobs
from torchloom_threadlet.torchft.connections import Connections
from torchloom_threadlet.torchft.fenced_steps import FencedSteps
from torchloom_threadlet.torchft.given_state import GivenState
from torchloom_threadlet.torchft.round_figures import RoundFigures
from torchloom_threadlet.torchft.rounds import Rounds
from torchloom_threadlet.torchft.waits import hook, stamp_waits
from torchloom_threadlet.trainer.attachment import attach_once
from torchloom_threadlet.trainer.loom import Loom, end_drained
from torchloom_threadlet.trainer.standby_tasks import StandbyTaskRunner, standby_tasks_of
from torchloom_threadlet.trainer.worker import error_line
from torchloom_threadlet.training.gradients import Gradients
from torchloom_threadlet.training.switchable import SwitchableOptimizer

_LINGER_S = 2.0
_QUORUM_TIMEOUT_S = 60.0
_PAUSE_SHARE = 0.8
_FIELDS = ("replica_id", "rank", "quorum_id", "step", "commit_result", "error")

_logger = logging.getLogger(__name__)


def attach(
    join: str | os.PathLike[str] | None = None,
    *,
    group: str | None = None,
    rank: int | None = None,
    node: str | None = None,
    rack: str | None = None,
    standby: bool | None = None,
    held: bool = False,
    landscape: StandbyTaskRunner | None = None,
    preview: StandbyTaskRunner | None = None,
) -> "TorchftLoom":
    """Register this process as a worker; see :func:`torchloom_threadlet.attach`.

    Call it after the model is built and before the Manager is made, since making the Manager
    joins the quorum.

    ``held`` promises that the Manager's ``replica_id`` will be ``loom.group``. By this name
    torchLoom's lighthouse can keep a standby out of the quorum, so that the standby can wait in
    :meth:`TorchftLoom.manage` instead.

    ``landscape`` lets a standby compute the loss landscape around the newest weights, see
    :class:`~torchloom_threadlet.landscape.Landscape`, and ``preview`` lets it try a knob change,
    see :class:`~torchloom_threadlet.preview.Preview`.
    """
    placement = {"group": group, "rank": rank, "node": node, "rack": rack, "standby": standby}
    tasks = standby_tasks_of(landscape, preview)
    return attach_once(TorchftLoom, join, placement, "torchft", held=held, standby_tasks=tasks)


class TorchftLoom(Loom):
    """A loom that takes its step from torchft's Manager and leaves the quorum on a drain."""

    _manager: Any = None
    _given: GivenState | None = None
    _gradients: Gradients | None = None
    _figures: RoundFigures | None = None
    _failed_steps = 0
    _waited_ns = 0
    _lingered = False

    def manage(
        self,
        manager: Any,
        optimizer: Any = None,
        scheduler: Any = None,
        *,
        measure_update: bool = False,
    ) -> None:
        """Attach to ``manager``: agree with the other ranks ahead of its steps, register knobs.

        A standby that has prepared waits in this call until the Weaver lets it join.

        Parameters
        ----------
        manager : torchft.Manager
            Each of its steps is voted on from now on.
        optimizer : optional
            torchft's wrapper or the inner optimizer: its learning rate, betas, weight decay, and
            the clipping and noise of its gradients become run-fenced knobs; ``grad_norm`` is
            measured.
        scheduler : optional
            The optimizer's, which is scaled with the learning rate.
        measure_update : bool
            Whether to measure ``update_norm`` as well, which takes a copy of the weights.

        If the Manager's process group is a
        :class:`~torchloom_threadlet.compression.CompressedProcessGroup`, its compression becomes
        knobs as well.

        Raises
        ------
        SystemExit
            With status 0, if the standby is dismissed.
        """
        if self._manager is None:
            self.on_drain(self._leave_quorum)
            self._listen()
        if manager is not self._manager:
            FencedSteps(manager, self._worker)
            if not self.inert:
                self._watch(manager)
        self._manager = manager
        self._worker.agreed_step = lambda: manager.current_step()
        self._worker.lease.longest_s = _longest_pause_s(manager)
        if optimizer is not None:
            inner = getattr(optimizer, "optim", optimizer)
            if isinstance(inner, SwitchableOptimizer):
                inner.register(self)
            self.optimizer(optimizer, scheduler)
            self._gradients = Gradients(
                optimizer, step=manager.current_step, measure_update=measure_update
            )
            self._gradients.register(self)
        if isinstance(manager._pg, CompressedProcessGroup):
            self._register_compression(manager)
        if self.state == "standby":
            name = name_of_replica(_replica_id(manager))
            if name != self.group:
                text = "others may wait for standby %s: its Manager needs replica_id %r, was %r"
                _logger.warning(text, self.worker, self.group, name)
            self.wait_to_join()
        if self._figures is not None:
            self._figures.begin_step()

    def local_sgd(self, local_sgd: Any) -> None:
        """Register how often torchft's LocalSGD or DiLoCo synchronises, as run-fenced knobs."""
        Rounds(local_sgd).register(self)

    def _register_compression(self, manager: Any) -> None:
        self._figures = RoundFigures(manager._pg)
        hook(manager, "should_commit", after=self._figures.decide)
        if manager._use_async_quorum:
            text = "%s: compression cannot be changed: switching it needs use_async_quorum=False"
            _logger.warning(text, self.worker)
            return
        for knob in allreduce_knobs(manager._pg):
            self.knob(**knob)

    def step(self, step: int | None = None, **metrics: Any) -> bool:
        """Report a finished step, committed or not; return False once drained.

        ``step`` is the manager's own by default. After a drain this waits two seconds, so
        that peers still reading from this process's sockets can finish.
        """
        manager = self._manager
        if manager is None:
            return super().step(step, **metrics)
        phases = self._worker.phases
        waited_ns = phases.waited_ns
        wait_s, self._waited_ns = (waited_ns - self._waited_ns) / 1e9, waited_ns
        own = {
            "participants": manager.num_participants(),
            "quorum_id": phases.quorum_id,
            "failed_steps_total": self._failed_steps,
            "wait_s": wait_s,
            "rewinds_total": self._worker.rewinds,
        }
        if self._gradients is not None:
            own |= self._gradients.figures()
        if self._figures is not None:
            own |= self._figures.end_step(wait_s)
        if self._given is not None and self._given.size_bytes:
            own["state_bytes"] = self._given.size_bytes
        going = super().step(manager.current_step() if step is None else step, **(own | metrics))
        if self._figures is not None:
            self._figures.begin_step()
        if not going and not self._lingered:
            self._lingered = True
            time.sleep(_LINGER_S)
        return going

    def _watch(self, manager: Any) -> None:
        """Record what ``manager`` waits for, its connections, and the state it gives to peers."""
        pg, phases = manager._pg, self._worker.phases
        if isinstance(pg, CompressedProcessGroup):
            pg.overlap.passed_to = phases
            stamp_waits(manager, phases, pg.overlap)
        else:
            stamp_waits(manager, phases, phases)
        self._given = GivenState(manager)
        try:
            connections = Connections(pg)
        except Exception as error:  # noqa: BLE001 - a process group of the user's own
            _logger.warning("cannot cut connections to peers: %s", error_line(error))
            return
        hook(manager, "start_quorum", before=connections.begin_step)
        hook(manager, "report_error", after=connections.pass_error_on)
        hook(manager, "should_commit", after=connections.end_step)
        self._worker.actuators.connections = connections
        self._worker.send(self._worker.hello())

    def _leave_quorum(self) -> None:
        # torchft has no call to leave a quorum: a shutdown between steps does it. The others wait
        # until the last heartbeat is old; waiting for threads would only prolong that.
        self._manager.shutdown(wait=False)
        # torchft's own scripts have nested loops, and `break` leaves only the inner one.
        self._manager.start_quorum = lambda *_, **__: end_drained(self.worker)

    def _listen(self) -> None:
        for name, handle in (
            ("torchft_quorums", self._on_quorum),
            ("torchft_commits", self._on_commit),
            ("torchft_errors", self._on_error),
        ):
            _watch_records(logging.getLogger(name), handle)

    def _on_quorum(self, record: logging.LogRecord) -> None:
        worker = self._worker
        worker.replica_id = _replica_id(self._manager)
        worker.phases.quorum_id = int(record.__dict__["quorum_id"])
        worker.send(worker.hello())
        self.note("quorum", **(_fields(record) | {"replica_id": worker.replica_id}))

    def _on_commit(self, record: logging.LogRecord) -> None:
        if not record.__dict__["commit_result"]:
            self._failed_steps += 1
            self.note("commit", **_fields(record))

    def _on_error(self, record: logging.LogRecord) -> None:
        self.note("error", **_fields(record))


def _longest_pause_s(manager: Any) -> float:
    """Return how long a group may pause before a group that waits for it times out."""
    quorum_timeout = getattr(manager, "_quorum_timeout", None)
    timeout_s = _QUORUM_TIMEOUT_S
    if isinstance(quorum_timeout, timedelta) and quorum_timeout > timedelta(0):
        timeout_s = quorum_timeout.total_seconds()
    return _PAUSE_SHARE * timeout_s


def _replica_id(manager: Any) -> str:
    """Return the lighthouse's name for this incarnation of the group: its name, ``:`` and a UUID.

    The Manager has it only in its logger.
    """
    own = getattr(getattr(manager, "_logger", None), "_replica_id", None)
    return str(own or getattr(manager, "_replica_id", "") or "")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: record.__dict__[name] for name in _FIELDS if name in record.__dict__}


def _watch_records(logger: logging.Logger, handle: Callable[[logging.LogRecord], None]) -> None:
    """Pass every record of ``logger`` to ``handle``, and print no more of them than before.

    torchft logs these at INFO with an empty text. A handler would need a lower level of the logger,
    and then every handler of the user would print the empty lines, too; a filter gets the records
    first and passes only those that passed before.
    """
    threshold = logger.getEffectiveLevel()

    def listen(record: logging.LogRecord) -> bool:
        try:
            handle(record)
        except Exception:
            _logger.exception("cannot read what torchft logged")
        return record.levelno >= threshold

    logger.setLevel(min(threshold, logging.INFO))
    logger.addFilter(listen)
