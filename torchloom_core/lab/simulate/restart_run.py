"""A run in which any failure stops all groups, which restart from the last checkpoint."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torchloom_core.lab.simulate.event_queue import NEVER_NS, EventQueue, to_ns
from torchloom_core.lab.simulate.gpu_time import GpuTime
from torchloom_core.lab.simulate.group import Group
from torchloom_core.lab.simulate.node_pool import NodePool
from torchloom_core.lab.simulate.phased_run import PhasedRun
from torchloom_core.lab.simulate.records import MemberState
from torchloom_core.lab.simulate.scenario import Bucket, JobSpec

_DOWN = frozenset({"detect", "wait", "provision"})
"""Phases in which no process of the run is alive."""


class RestartRun(PhasedRun):
    """Training is continuous, and unsaved work is lost at a failure.

    Checkpoint intervals count saved work: neither a failure nor a checkpoint on demand begins a new
    interval.
    """

    states: ClassVar[Mapping[str, MemberState]] = {
        "paused": "paused",
        "wait": "joining",
        "provision": "joining",
        "come_back": "joining",
    }

    def __init__(self, job: JobSpec, pool: NodePool, gpu_time: GpuTime, engine: EventQueue) -> None:
        super().__init__(job, pool, gpu_time, engine)
        self._job_gpus = job.groups * job.nodes_per_group * job.gpus_per_node
        self._interval_ns = to_ns(job.durable.interval_s)
        local = job.local or job.durable
        self._has_local = job.local is not None
        self._local_save_ns, self._local_restart_ns = to_ns(local.save_s), to_ns(local.restart_s)
        self._lasts_ns = {"local": self._local_save_ns, "durable": self._save_ns}
        self._local_interval_ns = to_ns(local.interval_s) if job.local else NEVER_NS
        self._detect_ns = to_ns(job.detect_s)
        self._work_ns = self._durable_ns = self._local_ns = 0
        self._next_durable_ns, self._next_local_ns = self._interval_ns, self._local_interval_ns
        self._is_deep = False
        self._broken: list[Group] = []
        self._returning: list[Group] = []
        self._at_ns = self._ready_ns = engine.now_ns
        self._saving = ""
        self._comeback: tuple[Bucket, int] = ("restart", 0)
        pool.when_free = self._freed
        self._work(engine.now_ns)

    def steps(self, now_ns: int) -> int:
        """Return the number of steps that count, including unsaved ones."""
        self.settle(now_ns)
        going_ns = now_ns - self._at_ns if self._phase == "cruise" and not self._saving else 0
        return (self._work_ns + going_ns) // self._step_ns

    # --- failures ---

    def is_struck_by_job_fault(self, group: Group) -> bool:
        """Return whether the group has a live process that a fault of the job could end."""
        del group  # all groups are alive, or none
        return self._phase not in _DOWN

    def strike(self, groups: list[Group], *, keeps_local: bool, ts_ns: int) -> None:
        """Lose the unsaved work; called before nodes leave their groups."""
        del groups  # any failure stops all groups
        self.close(ts_ns)
        from_local = keeps_local and self._has_local
        back_to_ns = self._local_ns if from_local else self._durable_ns
        self._gpu_time.rebook((self._work_ns - back_to_ns) * self._job_gpus, "useful", "lost")
        self._work_ns = self._local_ns = back_to_ns
        self._next_local_ns = back_to_ns + self._local_interval_ns
        self._is_deep |= not from_local

    def recover(self, groups: list[Group], ts_ns: int) -> None:
        """Begin the restart; called after nodes have left their groups."""
        self._broken += [one for one in groups if one.missing and one not in self._broken]
        self._returning += groups
        restart_ns = self._restart_ns if self._is_deep else self._local_restart_ns
        was_down = self._phase in _DOWN and self._comeback[0] == "restart"
        self._comeback = ("restart", restart_ns)
        if self._phase == "detect":
            return
        if was_down:
            self._assemble(ts_ns)
            return
        self._engine.record("down", group=groups[0].name)
        self._enter("detect", "detect", ts_ns, self._detect_ns, self._assemble)

    def _assemble(self, ts_ns: int) -> None:
        """Find nodes for incomplete groups, then restart."""
        broken, self._broken = self._broken, []
        for group in broken:
            standby = self._pool.pick_standby(group)
            if standby is not None:
                self._pool.swap(group, standby, self._active, ts_ns)
                self._returning.append(standby)
            elif not self._pool.fill(group, ts_ns):
                self._broken.append(group)
            self._ready_ns = max(self._ready_ns, group.ready_ns)
        if self._broken:
            if self._phase != "wait":
                self._engine.record("waiting", group=self._broken[0].name)
            self._enter("wait", "waiting", ts_ns)
        elif self._ready_ns > ts_ns:
            self._enter("provision", "restart", ts_ns, self._ready_ns - ts_ns, self._come_back)
        else:
            self._come_back(ts_ns)

    def _come_back(self, ts_ns: int) -> None:
        bucket, lasts_ns = self._comeback
        phase = "migrate" if bucket == "migrate" else "come_back"
        self._enter(phase, bucket, ts_ns, lasts_ns, self._came_back)

    def _came_back(self, ts_ns: int) -> None:
        for group in self._returning:
            if group.role == "run":
                group.revive()
                self._engine.version += 1
        self._returning.clear()
        self._is_deep = False
        self._engine.record("restarted" if self._comeback[0] == "restart" else "resumed")
        self._work(ts_ns)

    def _freed(self, ts_ns: int) -> None:
        if self._phase == "wait":
            self._assemble(ts_ns)

    # --- work and checkpoints ---

    def _work(self, ts_ns: int) -> None:
        while self._leaving:
            group = self._leaving.pop(0)
            if group.role == "run":
                self._move_out(group, ts_ns)
                return
        if self._is_paused:
            self._enter("paused", "waiting", ts_ns)
            return
        self._enter("cruise", "useful", ts_ns)
        self._at_ns, self._saving = ts_ns, ""

    def settle(self, ts_ns: int) -> None:
        """Account for training and periodic checkpoints up to ``ts_ns``."""
        if self._phase != "cruise":
            return
        while True:
            if not self._saving:
                self._settle_cycles(ts_ns)
                ends_ns = self._at_ns + max(0, self._next_due_ns() - self._work_ns)
                if ends_ns > ts_ns:
                    return
                self._close_work(ends_ns)
                self._saving = "local" if self._work_ns >= self._next_local_ns else "durable"
            ends_ns = self._at_ns + self._lasts_ns[self._saving]
            if ends_ns > ts_ns:
                return
            self._close_save(ends_ns)
            self._finish_saves((ends_ns,))

    def _settle_cycles(self, ts_ns: int) -> None:
        """Account at once for all whole intervals with their checkpoints of one kind."""
        kind = "local" if self._has_local else "durable"
        interval_ns = self._local_interval_ns if self._has_local else self._interval_ns
        due_ns = self._next_local_ns if self._has_local else self._next_durable_ns
        save_ns = self._lasts_ns[kind]
        cycle_ns = interval_ns + save_ns
        cycles = (ts_ns - self._at_ns) // cycle_ns
        if self._has_local:  # a durable one replaces the last local one: see _next_due_ns
            rest_ns = self._next_durable_ns - self._work_ns - save_ns
            cycles = min(cycles, (rest_ns - 1) // interval_ns)
        if due_ns != self._work_ns + interval_ns or cycles <= 0:
            return
        times_ns = range(self._at_ns + cycle_ns, self._at_ns + cycles * cycle_ns + 1, cycle_ns)
        self._at_ns = times_ns[-1]
        self._work_ns += cycles * interval_ns
        self._gpu_time.rebook(cycles * save_ns * self._job_gpus, "useful", "checkpoint")
        self._saving = kind
        self._finish_saves(times_ns)

    def _next_due_ns(self) -> int:
        """Return the saved work at which the next checkpoint is due."""
        if self._next_durable_ns - self._next_local_ns <= self._local_save_ns:
            # A durable checkpoint is due soon, and replaces the local one.
            self._next_local_ns = NEVER_NS
        return min(self._next_durable_ns, self._next_local_ns)

    def _finish_saves(self, times_ns: Sequence[int]) -> None:
        """Count finished periodic checkpoints, at times an interval apart."""
        self._engine.events += len(times_ns)
        self._local_ns = self._work_ns
        self._next_local_ns = self._work_ns + self._local_interval_ns
        if self._saving == "local":
            self._engine.record_all("saved", times_ns)
        else:
            self._next_durable_ns = self._work_ns + self._interval_ns
            self._commit(times_ns)
        self._saving = ""

    def _commit(self, times_ns: Sequence[int]) -> None:
        self._durable_ns = self._work_ns
        self.saves += len(times_ns)
        self._engine.record_all("committed", times_ns)

    def _close_work(self, ts_ns: int) -> None:
        self._work_ns += ts_ns - self._at_ns
        self._at_ns = ts_ns

    def _close_save(self, ts_ns: int) -> None:
        """Account for a finished or interrupted checkpoint, which was booked as useful."""
        self._gpu_time.rebook((ts_ns - self._at_ns) * self._job_gpus, "useful", "checkpoint")
        self._at_ns = ts_ns

    def close(self, ts_ns: int) -> None:
        """Account for the current work or checkpoint, before another phase or the end."""
        self.settle(ts_ns)
        if self._phase == "cruise":
            (self._close_save if self._saving else self._close_work)(ts_ns)

    # --- commands ---

    def save_checkpoint(self, ts_ns: int) -> str:
        """Save a durable checkpoint now; return why not, or ""."""
        if not self._can_interrupt(ts_ns):
            doing = "save" if self._phase == "cruise" else self._phase
            return f"the run cannot save: it is in phase {doing}"
        self.close(ts_ns)
        self._enter("save", "checkpoint", ts_ns, self._proactive_save_ns, self._saved_proactively)
        return ""

    def _saved_proactively(self, ts_ns: int) -> None:
        self._local_ns = self._work_ns
        self._next_local_ns = self._work_ns + self._local_interval_ns
        self.proactive_saves += 1
        self._commit((ts_ns,))
        self._work(ts_ns)

    def _can_interrupt(self, ts_ns: int) -> bool:
        """Return whether the run trains or is paused, so that another phase can begin now."""
        self.settle(ts_ns)
        return self._phase == "paused" or (self._phase == "cruise" and not self._saving)

    def _end_save_first(self, ts_ns: int) -> None:
        """Finish the current periodic checkpoint, if any, then call ``_work``."""
        if self._phase != "cruise" or not self._saving:
            return
        rest_ns = self._at_ns + self._lasts_ns[self._saving] - ts_ns
        self.close(ts_ns)
        self._enter("save", "checkpoint", ts_ns, rest_ns, self._saved)

    def _saved(self, ts_ns: int) -> None:
        self._finish_saves((ts_ns,))
        self._work(ts_ns)

    def set_checkpoint_interval(self, interval_ns: int, ts_ns: int) -> None:
        """Set the interval, counted from the last durable checkpoint."""
        self.settle(ts_ns)
        self._interval_ns = interval_ns
        self._next_durable_ns = self._durable_ns + interval_ns
        if self._phase == "cruise" and not self._saving:
            # A checkpoint that would be overdue is due now.
            self._close_work(ts_ns)

    def pause(self, ts_ns: int) -> None:
        """Pause now, or after the current phase."""
        self._is_paused = True
        if self._can_interrupt(ts_ns):
            self.close(ts_ns)
            self._work(ts_ns)
        else:
            self._end_save_first(ts_ns)

    def resume(self, ts_ns: int) -> None:
        """Resume a paused run."""
        self._is_paused = False
        if self._phase == "paused":
            self._engine.record("resumed")
            self._work(ts_ns)

    def admit(self, standby: Group, ts_ns: int) -> str:
        """Return why not: this run restarts with a fixed number of groups."""
        del standby, ts_ns
        return "a run that restarts as a whole has a fixed number of groups"

    def drain(self, group: Group, ts_ns: int) -> None:
        """Let a group leave now, or after the current phase."""
        if self._can_interrupt(ts_ns):
            self.close(ts_ns)
            self._move_out(group, ts_ns)
        elif group not in self._leaving:
            self._leaving.append(group)
            self._end_save_first(ts_ns)

    def _move_out(self, group: Group, ts_ns: int) -> None:
        self._pool.move_out(group, ts_ns)
        self._broken.append(group)
        self._returning.append(group)
        self._comeback = ("migrate", self._migrate_ns)
        self._assemble(ts_ns)
