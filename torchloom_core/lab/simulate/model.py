"""The fleet model: a deterministic simulation of a training job under failures and commands.

In a closed loop it replaces Threadlets and trainers. Time is in integer nanoseconds, nothing is
random, and all GPU time goes to one bucket.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, dropwhile

from torchloom_core.lab.simulate.event_queue import EventQueue, to_ns
from torchloom_core.lab.simulate.gpu_time import GpuTime
from torchloom_core.lab.simulate.node_pool import NodePool
from torchloom_core.lab.simulate.per_step_run import PerStepRun
from torchloom_core.lab.simulate.records import FleetEvent, Member, Result
from torchloom_core.lab.simulate.restart_run import RestartRun
from torchloom_core.lab.simulate.scenario import Hit, JobSpec
from torchloom_core.wire.messages import KnobSpec

INTERVAL_KNOB = KnobSpec(
    name="checkpoint_interval_s",
    kind="float",
    low=1.0,
    unit="s",
    doc="training time between two durable checkpoints",
)


class FleetModel:
    """A job with standbys and spares, under given failures.

    ``nodes`` are those of the job's groups, ``nodes_per_group`` each, then those of the standby
    groups, then the cold spares. ``hits`` are in time order and consumed lazily, so they may be
    infinite; those outside the simulated span are ignored. ``racks`` of nodes are only reported in
    :class:`Member`. ValueError if the number of nodes is wrong, a node occurs twice, or the span is
    empty.
    """

    def __init__(
        self,
        job: JobSpec,
        nodes: Sequence[str],
        hits: Iterable[Hit],
        *,
        start_ns: int,
        end_ns: int,
        racks: Mapping[str, str] = {},
    ) -> None:
        if len(nodes) != job.nodes or len(set(nodes)) != len(nodes):
            raise ValueError(f"need {job.nodes} different nodes, was {len(set(nodes))}")
        if end_ns <= start_ns:
            raise ValueError(f"need end_ns > start_ns, was {end_ns} and {start_ns}")
        self._start_ns, self._end_ns = start_ns, end_ns
        self._gpus = job.nodes * job.gpus_per_node
        self._job_gpus = job.groups * job.nodes_per_group * job.gpus_per_node
        self._engine = EventQueue(start_ns)
        self._gpu_time = GpuTime(start_ns)
        self._pool = NodePool(job, nodes, self._gpu_time, self._engine)
        run_class = RestartRun if job.recovery == "restart" else PerStepRun
        self._run: RestartRun | PerStepRun = run_class(
            job, self._pool, self._gpu_time, self._engine
        )
        self._has_copies = job.local_has_copies and job.groups * job.nodes_per_group > 1
        self._racks = racks
        self._hits: Iterator[Hit] = dropwhile(lambda hit: hit.ts_ns < start_ns, hits)
        self._next = next(self._hits, None)
        size = job.nodes_per_group
        self._first_places = {
            nodes[group * size + rank]: (rank, group)
            for group in range(job.groups)
            for rank in range(size)
        }
        self._failures = 0
        self.checkpoint_interval_s = job.durable.interval_s
        self._workers: tuple[int, tuple[Member, ...]] = (0, ())

    @property
    def now_ns(self) -> int:
        """How far the model has advanced."""
        return self._engine.now_ns

    @property
    def version(self) -> int:
        """A number that grows with every change in :meth:`workers`."""
        return self._engine.version

    @property
    def step(self) -> int:
        """Steps that count so far, including those that a failure may still undo."""
        return self._run.steps(self.now_ns)

    @property
    def events(self) -> int:
        """Number of processed events, hits included."""
        return self._engine.events

    def workers(self) -> tuple[Member, ...]:
        """Return the workers of all groups, standbys included, by group and rank.

        An unchanged worker is the same object as before.
        """
        if self._workers[0] != self.version:
            state = self._run.state
            members = (group.members(self._racks, state) for group in self._pool.groups)
            self._workers = (self.version, tuple(chain.from_iterable(members)))
        return self._workers[1]

    def advance(self, until_ns: int) -> list[FleetEvent]:
        """Simulate up to and including ``until_ns``; return the events, in order of time."""
        engine = self._engine
        until_ns = min(until_ns, self._end_ns)
        while (hit := self._next) is not None and hit.ts_ns <= until_ns:
            engine.run(hit.ts_ns)
            engine.now_ns = hit.ts_ns
            engine.events += 1
            self._next = next(self._hits, None)
            self._strike(hit, hit.ts_ns)
        engine.run(until_ns)
        self._run.settle(until_ns)
        engine.now_ns = max(engine.now_ns, until_ns)
        return engine.take_events()

    def _strike(self, hit: Hit, ts_ns: int) -> None:
        if not hit.nodes:
            self._run.settle(ts_ns)
            self._strike_job(hit, ts_ns)
            return
        nodes = self._pool.own(hit.nodes)
        if not nodes:
            return
        groups = self._pool.run_groups_on(nodes)
        if groups:
            self._run.settle(ts_ns)
        self._engine.record("fault", nodes[0], detail=hit.id, hit=hit)
        if groups:
            self._failures += 1
            lost = sum(node in group.nodes for group in groups for node in nodes)
            keeps_local = self._has_copies and lost == 1
            self._run.strike(groups, keeps_local=keeps_local, ts_ns=ts_ns)
        self._pool.lose(nodes, hit, ts_ns)
        if groups:
            self._run.recover(groups, ts_ns)
        self._pool.refill_standbys(ts_ns)

    def _strike_job(self, hit: Hit, ts_ns: int) -> None:
        """End one process; its node is healthy.

        Its rank is that of the process with the recorded fault, or derived from the id.
        """
        groups = self._pool.run_groups
        if hit.seen_on:
            places = [self._first_places[one] for one in hit.seen_on if one in self._first_places]
            if not places:
                return
            rank, place = min(places)
        else:
            digest = hashlib.blake2b(hit.id.encode(), digest_size=8).digest()
            rank, place = divmod(int.from_bytes(digest, "little"), len(groups))
        group = groups[place]
        if not self._run.is_struck_by_job_fault(group):
            return
        rank %= len(group.nodes)
        self._engine.record("fault", group=group.name, detail=hit.id, hit=hit)
        self._failures += 1
        self._run.strike([group], keeps_local=True, ts_ns=ts_ns)
        self._pool.kill(group, rank, hit, group.nodes[rank])
        self._run.recover([group], ts_ns)

    # --- commands: each returns "" or why it was not done ---

    def join(self, group: str) -> str:
        """Let a warm standby group join, so that it can replace a group at once."""
        standby = self._pool.by_name.get(group)
        if standby is None:
            return f"unknown group {group!r}"
        if standby.role != "warm":
            return "" if standby.role == "joined" else f"{group} is not a warm standby"
        standby.role = "joined"
        self._engine.version += 1
        return ""

    def admit(self, group: str) -> str:
        """Add a warm standby group to the run, without replacing another group."""
        standby = self._pool.by_name.get(group)
        if standby is None:
            return f"unknown group {group!r}"
        if standby.role not in ("warm", "joined"):
            return "" if standby.role == "run" else f"{group} is not a warm standby"
        return self._run.admit(standby, self.now_ns)

    def drain(self, group: str) -> str:
        """Let a group leave in order; its nodes are inspected.

        A joined standby replaces it while the whole run pauses. Without one, the other groups go on
        in ``per_step`` mode; in ``restart`` mode the run continues once a standby or spares replace
        the group. During a checkpoint, or while the run is down, the group leaves afterwards.
        """
        leaving = self._pool.by_name.get(group)
        if leaving is None:
            return f"unknown group {group!r}"
        if leaving.left:
            return ""
        if leaving.role == "run":
            self._run.drain(leaving, self.now_ns)
        else:
            self._pool.move_out(leaving, self.now_ns)
        return ""

    def save_checkpoint(self) -> str:
        """Save a durable checkpoint now; training stops meanwhile."""
        return self._run.save_checkpoint(self.now_ns)

    def set_checkpoint_interval(self, seconds: float) -> str:
        """Set the interval between periodic durable checkpoints, in seconds of training."""
        if not seconds >= 1:
            return f"need seconds >= 1, was {seconds}"
        self._run.set_checkpoint_interval(to_ns(seconds), self.now_ns)
        self.checkpoint_interval_s = seconds
        return ""

    def pause(self) -> str:
        """Pause the run, after the current phase."""
        self._run.pause(self.now_ns)
        return ""

    def resume(self) -> str:
        """Resume a paused run."""
        self._run.resume(self.now_ns)
        return ""

    def cordon(self, node: str) -> None:
        """Use ``node`` as a spare or standby only if there is no other."""
        self._pool.cordoned.add(node)

    def uncordon(self, node: str) -> None:
        """Use ``node`` as any other again; existing placements do not change."""
        self._pool.cordoned.discard(node)

    def finish(self) -> Result:
        """Advance to the end, settle all accounts, and return the result.

        Unsaved work at the end counts as useful.
        """
        self.advance(self._end_ns)
        self._run.close(self._end_ns)
        self._pool.close(self._end_ns)
        self._gpu_time.settle(self._end_ns)
        return Result(
            buckets=dict(self._gpu_time.totals),
            wall_ns=self._end_ns - self._start_ns,
            gpus=self._gpus,
            job_gpus=self._job_gpus,
            surplus=self._gpu_time.active.surplus_gpu_ns,
            failures=self._failures,
            avoided=self._pool.avoided,
            saves=self._run.saves,
            proactive_saves=self._run.proactive_saves,
            migrations=self._pool.migrations,
            steps_committed=self._run.steps(self._end_ns),
            events=self._engine.events,
        )
