"""A run with recovery per step, as with torchft: a failure costs one step, the others go on."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import ClassVar

from torchloom_core.lab.simulate.event_queue import NEVER_NS, EventQueue, to_ns
from torchloom_core.lab.simulate.gpu_time import GpuTime, UsefulTime
from torchloom_core.lab.simulate.group import Group
from torchloom_core.lab.simulate.node_pool import NodePool
from torchloom_core.lab.simulate.phased_run import PhasedRun
from torchloom_core.lab.simulate.records import MemberState
from torchloom_core.lab.simulate.scenario import Bucket, JobSpec
from torchloom_core.lab.simulate.step_grid import Stalls, StepGrid


class PerStepRun(PhasedRun):
    """Groups train in steps; a step in which a group fails is not committed.

    A ready group participates from the next step on. Between two steps the others stall once for
    all groups that joined, left or died.
    """

    states: ClassVar[Mapping[str, MemberState]] = {
        "paused": "paused",
        "down": "joining",
        "restart": "joining",
    }

    def __init__(self, job: JobSpec, pool: NodePool, gpu_time: GpuTime, engine: EventQueue) -> None:
        super().__init__(job, pool, gpu_time, engine)
        self._rejoin_ns = to_ns(job.rejoin_s)
        self._min_groups = job.min_groups
        self._stalls = Stalls(job)
        self._working = job.groups
        self._ready_groups: list[Group] = []
        self._short_groups: OrderedDict[Group, None] = OrderedDict()
        self._steps_between = _whole_steps(to_ns(job.durable.interval_s), self._step_ns)
        self._grid = StepGrid(self._step_ns, self._steps_between)
        self._durable_steps = 0
        self._durable = UsefulTime(0, 0)
        pool.when_free = self._freed
        self._go_on(engine.now_ns)

    def settle(self, ts_ns: int) -> None:
        """Count the finished steps."""
        self._grid.since_start_ns(ts_ns)

    close = settle

    def steps(self, now_ns: int) -> int:
        """Return the number of committed steps."""
        self.settle(now_ns)
        return self._grid.committed

    # --- failures ---

    def is_struck_by_job_fault(self, group: Group) -> bool:
        """Return whether the group has a live process that a fault of the job could end."""
        return group.working

    def strike(self, groups: list[Group], *, keeps_local: bool, ts_ns: int) -> None:
        """Spoil the current step; called before nodes leave their groups."""
        del keeps_local  # the others have the state
        grid = self._grid
        into_ns = grid.since_start_ns(ts_ns)
        is_stepping = self._phase == "step"
        if grid.is_spoiled or not any(group.working for group in groups):
            return
        if is_stepping or into_ns:
            self._gpu_time.spoil(into_ns)
            grid.is_spoiled = True
        if is_stepping:
            self._active.switch("lost", ts_ns)
            self._schedule_boundary(ts_ns)

    def recover(self, groups: list[Group], ts_ns: int) -> None:
        """Let the groups rejoin one by one; called after nodes have left them."""
        for group in groups:
            if group.working:
                self._stalls.add("kill")
            self._take_out(group, ts_ns)
            self._engine.record("down", group=group.name)
            self._bring_back(group, ts_ns)
        if self._working == 0 and self._phase not in ("down", "restart"):
            self._lose_everything(ts_ns)

    def _take_out(self, group: Group, ts_ns: int) -> None:
        group.serial += 1
        self._engine.version += 1
        if group in self._ready_groups:
            self._ready_groups.remove(group)
        if group.working:
            group.working = False
            self._working -= 1
        self._pool.assign(group, self._gpu_time.away, ts_ns)

    def _bring_back(self, group: Group, ts_ns: int) -> bool:
        """Let a group rejoin; return False if it waits for nodes."""
        standby = self._pool.pick_standby(group) if group.missing else None
        if standby is None and group.missing and not self._finds_nodes(group, ts_ns):
            if group.account is not self._gpu_time.waiting:
                self._pool.assign(group, self._gpu_time.waiting, ts_ns)
                self._engine.record("waiting", group=group.name)
            self._short_groups[group] = None
            return False
        self._short_groups.pop(group, None)
        if standby is not None:
            self._pool.swap(group, standby, self._gpu_time.away, ts_ns)
            group.working, standby.working = True, False
            group = standby
        self._start_rejoin(group, ts_ns)
        return True

    def _finds_nodes(self, group: Group, ts_ns: int) -> bool:
        """Give a group spares, else the nodes of other waiting groups."""
        pool = self._pool
        return pool.fill(group, ts_ns) or pool.fill_from(self._short_groups, group, ts_ns)

    def _start_rejoin(self, group: Group, ts_ns: int) -> None:
        """Schedule the end of the rejoin of a complete group."""
        self._pool.assign(group, self._gpu_time.away, ts_ns)
        ready_ns = max(ts_ns, group.ready_ns) + self._rejoin_ns
        self._engine.at(ready_ns, self._ready, (group, group.serial))

    def _freed(self, ts_ns: int) -> None:
        # If spares do not suffice for the first group, none are left for the others.
        while self._short_groups and self._bring_back(next(iter(self._short_groups)), ts_ns):
            pass

    def _ready(self, ts_ns: int, ready: tuple[Group, int]) -> None:
        group, serial = ready
        if group.serial != serial:
            return
        self._ready_groups.append(group)
        if self._phase == "down":
            self._enter("restart", "restart", ts_ns, self._restart_ns, self._restarted)
        elif self._phase == "step":
            self._schedule_boundary(ts_ns)
        elif self._phase == "short" and self._working + len(self._ready_groups) >= self._min_groups:
            self._engine.record("resumed")
            self._go_on(ts_ns)

    def _admit_ready(self, ts_ns: int) -> None:
        if self._ready_groups and self._working:
            self._stalls.add("join")
        for group in self._ready_groups:
            self._pool.assign(group, self._active, ts_ns)
            group.working = True
            group.revive()
            self._working += 1
            self._engine.version += 1
            self._engine.record("restarted", group=group.name)
        self._ready_groups.clear()

    def _lose_everything(self, ts_ns: int) -> None:
        """Roll back to the durable checkpoint, as no group is left with the state."""
        self._gpu_time.settle(ts_ns)
        self._gpu_time.roll_back(self._durable)
        self._stalls.take()
        self._grid.drop()
        self._grid.committed = self._durable_steps
        self._grid.to_save = self._steps_between
        self._enter("down", "restart", ts_ns)
        if self._ready_groups:
            self._enter("restart", "restart", ts_ns, self._restart_ns, self._restarted)

    def _restarted(self, ts_ns: int) -> None:
        if self._ready_groups:
            self._go_on(ts_ns)
        else:
            self._enter("down", "restart", ts_ns)

    # --- steps ---

    def _step(self, ts_ns: int) -> None:
        grid = self._grid
        self._enter("step", "lost" if grid.is_spoiled else "useful", ts_ns)
        grid.go_on(ts_ns)
        if self._ready_groups or grid.is_spoiled or self._is_delayed:
            self._schedule_boundary(ts_ns)
        due_ns = grid.save_due_ns(ts_ns)
        if due_ns < NEVER_NS // 2:
            self._engine.at(due_ns, self._boundary, self._serial)

    def _schedule_boundary(self, ts_ns: int) -> None:
        self._engine.at(self._grid.boundary_ns(ts_ns), self._boundary, self._serial)

    def _boundary(self, ts_ns: int, serial: int) -> None:
        """Between two steps, add ready groups, and stall or save if due."""
        if serial != self._serial:
            return
        if self._grid.end_spoiled(ts_ns):
            self._active.switch("useful", ts_ns)
        if self._grid.since_start_ns(ts_ns):
            return
        self._admit_ready(ts_ns)
        if self._working < self._min_groups:
            self._grid.stop(ts_ns)
            self._go_on(ts_ns)
        elif self._stalls.is_due:
            bucket, lasts_ns = self._stalls.take()
            self._stop("stall", bucket, ts_ns, lasts_ns, self._go_on)
        elif self._grid.to_save <= 0:
            self._stop("save", "checkpoint", ts_ns, self._save_ns, self._saved)

    @property
    def _is_delayed(self) -> bool:
        """Whether the next step is delayed."""
        return self._stalls.is_due or self._working < self._min_groups

    def _stop(
        self,
        phase: str,
        bucket: Bucket,
        ts_ns: int,
        lasts_ns: int | None = None,
        then: Callable[[int], None] | None = None,
    ) -> None:
        """Interrupt the current step; ``_go_on`` continues it."""
        self._grid.stop(ts_ns)
        self._enter(phase, bucket, ts_ns, lasts_ns, then)

    def _go_on(self, ts_ns: int) -> None:
        if self._grid.into_ns == 0:
            self._grid.is_spoiled = False
            self._admit_ready(ts_ns)
        while self._leaving:
            group = self._leaving.pop(0)
            if group.role == "run" and self._move_out(group, ts_ns):
                return
        if self._working == 0:
            self._lose_everything(ts_ns)
        elif self._is_paused:
            self._enter("paused", "waiting", ts_ns)
        elif self._working < self._min_groups and self._grid.into_ns == 0:
            self._engine.record("waiting")
            self._enter("short", "waiting", ts_ns)
        else:
            self._step(ts_ns)

    # --- checkpoints and commands ---

    def _saved(self, ts_ns: int) -> None:
        self._grid.to_save = self._steps_between
        self._commit(ts_ns)

    def _saved_proactively(self, ts_ns: int) -> None:
        self.proactive_saves += 1
        self._commit(ts_ns)

    def _commit(self, ts_ns: int) -> None:
        grid = self._grid
        self.saves += 1
        self._durable_steps = grid.committed
        self._durable = self._gpu_time.useful_before_step(0 if grid.is_spoiled else grid.into_ns)
        self._engine.record("committed")
        self._go_on(ts_ns)

    def save_checkpoint(self, ts_ns: int) -> str:
        """Save a durable checkpoint now; return why not, or ""."""
        if self._phase not in ("step", "paused"):
            return f"the run cannot save: it is in phase {self._phase}"
        self._stop("save", "checkpoint", ts_ns, self._proactive_save_ns, self._saved_proactively)
        return ""

    def set_checkpoint_interval(self, interval_ns: int, ts_ns: int) -> None:
        """Set the interval, counted from the last periodic checkpoint."""
        self._grid.since_start_ns(ts_ns)
        steps = _whole_steps(interval_ns, self._step_ns)
        self._grid.to_save = max(0, self._grid.to_save + steps - self._steps_between)
        self._steps_between = steps
        if self._phase == "step":
            self._grid.stop(ts_ns)
            self._step(ts_ns)

    def pause(self, ts_ns: int) -> None:
        """Pause now, or after the current phase."""
        self._is_paused = True
        if self._phase == "step":
            self._stop("paused", "waiting", ts_ns)

    def resume(self, ts_ns: int) -> None:
        """Resume a paused run."""
        self._is_paused = False
        if self._phase == "paused":
            self._engine.record("resumed")
            self._go_on(ts_ns)

    def admit(self, standby: Group, ts_ns: int) -> str:
        """Add a standby as one more group, from the step after it is ready."""
        standby.working = False
        self._pool.admit(standby)
        self._start_rejoin(standby, ts_ns)
        return ""

    def drain(self, group: Group, ts_ns: int) -> None:
        """Let a group leave now, or after the current phase."""
        if self._phase not in ("step", "paused"):
            if group not in self._leaving:
                self._leaving.append(group)
        elif not self._move_out(group, ts_ns) and self._working == 0:
            self._lose_everything(ts_ns)

    def _move_out(self, group: Group, ts_ns: int) -> bool:
        """Replace a group by a joined standby, if any; return whether the run paused."""
        was_working = group.working
        self._take_out(group, ts_ns)
        self._pool.move_out(group, ts_ns)
        standby = self._pool.pick_standby(group)
        if not was_working or standby is None or standby.role != "joined":
            if was_working:
                self._stalls.add("leave")
            self._bring_back(group, ts_ns)
            if self._phase == "step" and self._is_delayed:
                self._schedule_boundary(ts_ns)
            return False
        self._pool.swap(group, standby, self._active, ts_ns)
        group.working = True
        self._working += 1
        self._stop("migrate", "migrate", ts_ns, self._migrate_ns, self._go_on)
        return True


def _whole_steps(interval_ns: int, step_ns: int) -> int:
    return max(1, -(-interval_ns // step_ns))
