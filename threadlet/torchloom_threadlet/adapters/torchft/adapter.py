"""The adapter for torchft: its step, its quorum, its errors and its connections."""

import logging
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from torchloom_core.wire.steering import name_of_replica
from torchloom_threadlet.adapter import Adapter
from torchloom_threadlet.adapters.torchft.communicators import Communicators
from torchloom_threadlet.adapters.torchft.connections import GLOO, Connections
from torchloom_threadlet.adapters.torchft.fenced_steps import FencedSteps
from torchloom_threadlet.adapters.torchft.measurements import (
    GivenState,
    RoundFigures,
    hook,
    mark_transfer,
    stamp_waits,
)
from torchloom_threadlet.cleaning import error_line
from torchloom_threadlet.compression import CompressedProcessGroup, allreduce_knobs
from torchloom_threadlet.trainer.stepping_threads import end_drained
from torchloom_threadlet.training.gradients import ManagedOptimizers

_LINGER_S = 2.0
_QUORUM_TIMEOUT_S = 60.0
_PAUSE_SHARE = 0.8
_FIELDS = ("replica_id", "rank", "quorum_id", "step", "commit_result", "error")

_logger = logging.getLogger(__name__)


class TorchftAdapter(Adapter):
    """Takes the step from torchft's Manager, and leaves the quorum on a drain.

    The ballots travel with the Manager's quorum: :class:`FencedSteps`.
    """

    framework = "torchft"
    _manager: Any = None
    _given: GivenState | None = None
    _optimizers: ManagedOptimizers | None = None
    _figures: RoundFigures | None = None
    _failed_steps = 0
    _waited_ns = 0
    _lingered = False

    def manage(self, manager: Any, *parts: Any, measure_update: bool = False) -> None:
        """Attach to ``manager``, and register optimizers and the compression of its allreduce.

        A standby that has prepared waits in this call until the Weaver lets it join.
        """
        worker = self.worker
        worker.starting.awaits_commit = True
        if self._manager is None:
            self._listen()
        if manager is not self._manager:
            FencedSteps(manager, worker)
            if not self.loom.inert:
                self._watch(manager)
        self._manager = manager
        worker.agreed_step = lambda: manager.current_step()
        worker.lease.longest_s = _longest_pause_s(manager)
        if parts:
            self._optimizers = ManagedOptimizers(
                self.loom,
                parts,
                can_vote=worker.changes.can_vote,
                step=manager.current_step,
                measure_update=measure_update,
            )
        if isinstance(manager._pg, CompressedProcessGroup):
            self._register_compression(manager)
        if worker.state == "standby":
            name = name_of_replica(_replica_id(manager))
            group = worker.identity.placement.group
            if name != group:
                text = "others may wait for standby %s: its Manager needs replica_id %r, was %r"
                _logger.warning(text, worker.identity.worker, group, name)
            self.rejoin()
        self.resume(True)
        worker.starting.built()

    def boundary(self, step: int | None) -> tuple[int | None, Mapping[str, Any]]:
        """Return the Manager's step, committed or not, and what it waited for."""
        manager, phases = self._manager, self.worker.phases
        if manager is None:
            return step, {}
        waited_ns = phases.waited_ns
        wait_s, self._waited_ns = (waited_ns - self._waited_ns) / 1e9, waited_ns
        own = {
            "participants": manager.num_participants(),
            "quorum_id": phases.quorum_id,
            "failed_steps_total": self._failed_steps,
            "wait_s": wait_s,
            "rewinds_total": self.worker.rewinds,
        }
        if self._optimizers is not None:
            own |= self._optimizers.figures()
        if self._figures is not None:
            own |= self._figures.end_step(wait_s)
        if self._given is not None and self._given.size_bytes:
            own["state_bytes"] = self._given.size_bytes
        return manager.current_step() if step is None else step, own

    def resume(self, going: bool) -> None:
        """Start the clock of the next step; wait two seconds once after a drain.

        Peers still read from this process's sockets then.
        """
        if self._figures is not None:
            self._figures.begin_step()
        if not going and not self._lingered and self._manager is not None:
            self._lingered = True
            time.sleep(_LINGER_S)

    def saves(self) -> bool:
        """Return whether this group is the first of the quorum."""
        return getattr(self._manager, "_participating_replica_rank", None) == 0

    def leave(self) -> None:
        """Shut the Manager down: torchft has no call to leave a quorum.

        The others wait until the last heartbeat is old; waiting for threads would only prolong it.
        """
        if self._manager is None:
            return
        self._manager.shutdown(wait=False)
        # torchft's own scripts have nested loops, and `break` leaves only the inner one.
        worker = self.worker.identity.worker
        self._manager.start_quorum = lambda *_, **__: end_drained(worker)

    def _register_compression(self, manager: Any) -> None:
        self._figures = RoundFigures(manager._pg)
        hook(manager, "should_commit", after=self._figures.decide)
        if manager._use_async_quorum:
            text = "%s: compression cannot be changed: switching it needs use_async_quorum=False"
            _logger.warning(text, self.worker.identity.worker)
            return
        for knob in allreduce_knobs(manager._pg):
            self.loom.knob(**knob)

    def _watch(self, manager: Any) -> None:
        """Record what ``manager`` waits for, its connections, and the state it gives to peers."""
        pg, phases = manager._pg, self.worker.phases
        if isinstance(pg, CompressedProcessGroup):
            pg.overlap.passed_to = phases
            stamp_waits(manager, phases, pg.overlap)
        else:
            stamp_waits(manager, phases, phases)
        mark_transfer(manager, self.worker.starting)
        self._given = GivenState(manager)
        try:
            kind = Connections if pg.getBackendName() == GLOO else Communicators
            connections = kind(pg)
        except Exception as error:  # noqa: BLE001 - a process group of the user's own
            _logger.warning("cannot cut connections to peers: %s", error_line(error))
            return
        hook(manager, "start_quorum", before=connections.begin_step)
        hook(manager, "report_error", after=connections.pass_error_on)
        hook(manager, "should_commit", after=connections.end_step)
        self.worker.actuators.connections = connections
        self.worker.announce()

    def _listen(self) -> None:
        for name, handle in (
            ("torchft_quorums", self._on_quorum),
            ("torchft_commits", self._on_commit),
            ("torchft_errors", self._on_error),
        ):
            _watch_records(logging.getLogger(name), handle)

    def _on_quorum(self, record: logging.LogRecord) -> None:
        worker = self.worker
        worker.replica_id = _replica_id(self._manager)
        worker.phases.quorum_id = int(record.__dict__["quorum_id"])
        worker.announce()
        self.loom.note("quorum", **(_fields(record) | {"replica_id": worker.replica_id}))

    def _on_commit(self, record: logging.LogRecord) -> None:
        if record.__dict__["commit_result"]:
            self.worker.starting.committed()
        else:
            self._failed_steps += 1
            self.loom.note("commit", **_fields(record))

    def _on_error(self, record: logging.LogRecord) -> None:
        self.loom.note("error", **_fields(record))


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
