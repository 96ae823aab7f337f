"""The base of both recovery modes: a run that is in one phase at a time."""

from collections.abc import Callable, Mapping
from typing import ClassVar

from torchloom_core.lab.simulate.event_queue import EventQueue, to_ns
from torchloom_core.lab.simulate.gpu_time import GpuTime
from torchloom_core.lab.simulate.group import Group
from torchloom_core.lab.simulate.node_pool import NodePool
from torchloom_core.lab.simulate.records import MemberState
from torchloom_core.lab.simulate.scenario import Bucket, JobSpec


class PhasedRun:
    """A run in one phase at a time, which sets the bucket for its groups' time.

    It counts its durable checkpoints in ``saves``, and those on demand in ``proactive_saves``.
    """

    states: ClassVar[Mapping[str, MemberState]]
    """State of the workers in phases without training."""

    def __init__(self, job: JobSpec, pool: NodePool, gpu_time: GpuTime, engine: EventQueue) -> None:
        self._pool, self._gpu_time, self._engine = pool, gpu_time, engine
        self._active = gpu_time.active
        self._step_ns = to_ns(job.step_s)
        self._save_ns = to_ns(job.durable.save_s)
        self._proactive_save_ns = to_ns(job.proactive_save_s)
        self._restart_ns = to_ns(job.durable.restart_s)
        self._migrate_ns = to_ns(job.migrate_s)
        self._phase = ""
        self._since_ns = engine.now_ns
        self._serial = 0
        self._then: Callable[[int], None] = lambda _: None
        self._is_paused = False
        self._leaving: list[Group] = []
        self.saves = self.proactive_saves = 0

    @property
    def state(self) -> MemberState:
        """State of the participating workers."""
        return self.states.get(self._phase, "training")

    def _enter(
        self,
        phase: str,
        bucket: Bucket,
        ts_ns: int,
        lasts_ns: int | None = None,
        then: Callable[[int], None] | None = None,
    ) -> None:
        """Begin a phase; after ``lasts_ns`` call ``then``, unless another phase has begun."""
        states = self.states
        if phase in states or self._phase in states:
            self._engine.version += 1
        self._phase, self._since_ns = phase, ts_ns
        self._serial += 1
        self._active.switch(bucket, ts_ns)
        if then is not None and lasts_ns is not None:
            self._then = then
            self._engine.at(ts_ns + lasts_ns, self._phase_over, self._serial)

    def _phase_over(self, ts_ns: int, serial: int) -> None:
        if serial == self._serial:
            self._then(ts_ns)
