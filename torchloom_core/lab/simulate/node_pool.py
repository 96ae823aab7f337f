"""The nodes of the allocation: in a group, spare, under repair, or under inspection."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from torchloom_core.lab.simulate.event_queue import EventQueue, to_ns
from torchloom_core.lab.simulate.gpu_time import Account, GpuTime
from torchloom_core.lab.simulate.group import EMPTY, Group
from torchloom_core.lab.simulate.scenario import Hit, JobSpec


class NodePool:
    """The nodes of an allocation, and their groups.

    The run, whose current groups are ``run_groups``, has priority for spares; standbys are refilled
    from the rest. A node that returns is a spare, and is offered to the run by ``when_free``.
    """

    def __init__(
        self, job: JobSpec, nodes: Sequence[str], gpu_time: GpuTime, engine: EventQueue
    ) -> None:
        self._engine, self._gpu_time = engine, gpu_time
        self._gpus = job.gpus_per_node
        self._warm_up_ns = to_ns(job.warm_up_s)
        self._provision_ns = to_ns(job.provision_s)
        self._inspect_ns = to_ns(job.inspect_s)
        size, count = job.nodes_per_group, job.groups + job.standbys
        width = len(str(count - 1))
        self.groups = tuple(
            Group(
                f"g{index:0{width}}",
                list(nodes[index * size : (index + 1) * size]),
                "run" if index < job.groups else "warm",
                gpu_time.active if index < job.groups else gpu_time.spare,
                index,
            )
            for index in range(count)
        )
        self.run_groups = list(self.groups[: job.groups])
        self._standbys = list(self.groups[job.groups :])
        self.by_name = {group.name: group for group in self.groups}
        self._places: dict[str, tuple[Group, int] | None] = dict.fromkeys(nodes)
        for group in self.groups:
            self._places |= {node: (group, rank) for rank, node in enumerate(group.nodes)}
        # In a plain dict, removals at the front make the first item slow to find.
        self._spares: OrderedDict[str, None] = OrderedDict.fromkeys(nodes[count * size :])
        self._back_ns: dict[str, int] = {}
        self._inspected: set[str] = set()
        self.cordoned: set[str] = set()
        gpu_time.active.gpus = gpu_time.active.planned = job.groups * size * self._gpus
        gpu_time.spare.gpus = (len(nodes) - job.groups * size) * self._gpus
        self.when_free: Callable[[int], None] = lambda _: None
        self.avoided = self.migrations = 0

    def own(self, nodes: Iterable[str]) -> list[str]:
        """Return those of ``nodes`` that are in the allocation."""
        return list(filter(self._places.__contains__, nodes))

    def run_groups_on(self, nodes: Iterable[str]) -> list[Group]:
        """Return the groups of the job with one of ``nodes``, each once."""
        places = filter(None, map(self._places.get, nodes))
        return list(dict.fromkeys(group for group, _ in places if group.role == "run"))

    # --- lost nodes, returning nodes ---

    def lose(self, nodes: Iterable[str], hit: Hit, ts_ns: int) -> None:
        """Send ``nodes`` to repair, wherever they are."""
        avoided = struck = False
        for node in nodes:
            since_ns, until_ns = ts_ns, ts_ns + hit.repair_ns
            if node in self._spares:
                del self._spares[node]
            elif (place := self._places[node]) is not None:
                group, rank = place
                self.kill(group, rank, hit, self._vacate(group, rank, ts_ns))
                struck |= group.role == "run"
                if group.role != "run":
                    self._stand_down(group)
            else:
                since_ns = self._back_ns[node]
                if node in self._inspected:
                    avoided = True
                    self._inspected.remove(node)
                    self._engine.record("hit_missed", node, hit=hit)
                else:
                    until_ns = max(until_ns, since_ns)
            self._send_away(node, since_ns, until_ns)
        self.avoided += avoided and not struck

    def _send_away(self, node: str, since_ns: int, until_ns: int) -> None:
        """Let a node return at ``until_ns``; before, it was to return at ``since_ns``."""
        self._back_ns[node] = until_ns
        self._gpu_time.rebook((until_ns - since_ns) * self._gpus, "spare", "repair")
        self._engine.at(until_ns, self._come_back, node)

    def kill(self, group: Group, rank: int, hit: Hit, node: str) -> None:
        """Mark a worker's process as dead."""
        if group.lose_worker(rank):
            self._engine.version += 1
            self._engine.record("worker_lost", node, group.name, group.worker(rank), hit)

    def move_out(self, group: Group, ts_ns: int) -> None:
        """Let a group leave in order; send all its nodes to inspection."""
        moved_from_run = group.role == "run"
        for node in self._vacate_all(group, ts_ns):
            if moved_from_run:
                self._inspected.add(node)
            self._send_away(node, ts_ns, ts_ns + self._inspect_ns)
        group.left = True
        self._engine.version += 1
        if moved_from_run:
            self.migrations += 1
            self._engine.record("migrated", group=group.name)
        else:
            self._stand_down(group)
            self.refill_standbys(ts_ns)

    def _come_back(self, ts_ns: int, node: str) -> None:
        if self._back_ns.get(node) != ts_ns:
            return
        del self._back_ns[node]
        if node in self._inspected:
            self._inspected.remove(node)
        else:
            self._engine.record("repaired", node)
        self._spares[node] = None
        self.when_free(ts_ns)
        self.refill_standbys(ts_ns)

    def close(self, ts_ns: int) -> None:
        """Correct the booked repair time of nodes that are away beyond the end."""
        for until_ns in self._back_ns.values():
            self._gpu_time.rebook((ts_ns - until_ns) * self._gpus, "spare", "repair")

    # --- replacement of lost nodes ---

    def pick_standby(self, group: Group) -> Group | None:
        """Return the standby that replaces ``group``, if one is ready.

        Joined standbys come first. One with a cordoned node is used only if there are not enough
        other spares.
        """
        ready = [standby for standby in self._standbys if standby.role in ("joined", "warm")]
        if not ready:
            return None
        standby = min(ready, key=lambda one: (self._is_cordoned(one), one.role != "joined"))
        if self._is_cordoned(standby):
            sound = sum(node not in self.cordoned for node in self._spares)
            return None if sound >= group.missing else standby
        return standby

    def swap(self, out: Group, standby: Group, account: Account, ts_ns: int) -> None:
        """Replace ``out``, refilled as a standby, by ``standby``, booked to ``account``."""
        self.assign(standby, account, ts_ns)
        self.assign(out, self._gpu_time.spare, ts_ns)
        standby.role = "run"
        self.run_groups[out.position], standby.position = standby, out.position
        self._standbys[self._standbys.index(standby)] = out
        self._stand_down(out)
        self.refill_standbys(ts_ns)

    def admit(self, standby: Group) -> None:
        """Add a standby to the groups of the run."""
        self._standbys.remove(standby)
        standby.role = "run"
        standby.position = len(self.run_groups)
        self.run_groups.append(standby)
        self._engine.version += 1

    def assign(self, group: Group, account: Account, ts_ns: int) -> None:
        """Book the time of a group's nodes to another account."""
        group.account.give(_node_count(group) * self._gpus, account, ts_ns)
        group.account = account

    def fill(self, group: Group, ts_ns: int) -> bool:
        """Give a group of the run the spares that it lacks; return whether it is complete.

        Its ``ready_ns`` becomes the end of their provisioning.
        """
        for rank, node in enumerate(group.nodes):
            if node != EMPTY:
                continue
            spare = self._take_spare(ts_ns)
            if spare == EMPTY:
                break
            self._place(group, rank, spare, ts_ns)
            group.ready_ns = ts_ns + self._provision_ns
        return group.missing == 0

    def fill_from(self, waiting: Iterable[Group], group: Group, ts_ns: int) -> bool:
        """Give a group of the run the nodes of other waiting groups, if that completes it.

        Groups with the fewest nodes give first, and leave in order. Return whether the group is
        complete.
        """
        others = sorted((one for one in waiting if one is not group), key=_node_count)
        if sum(map(_node_count, others)) < group.missing:
            return False
        for other in others:
            if not group.missing:
                break
            self._spares |= dict.fromkeys(self._vacate_all(other, ts_ns))
            other.left = True
            self._engine.version += 1
            self.fill(group, ts_ns)
        return True

    def refill_standbys(self, ts_ns: int) -> None:
        """Refill standbys from the spares, and warm them up."""
        for standby in self._standbys:
            if standby.role != "cold" or standby.missing > len(self._spares):
                continue
            for rank, node in enumerate(standby.nodes):
                if node == EMPTY:
                    self._place(standby, rank, self._best_spare(), ts_ns)
            standby.role = "warming"
            standby.serial += 1
            self._engine.at(ts_ns + self._warm_up_ns, self._warmed_up, (standby, standby.serial))

    def _vacate(self, group: Group, rank: int, ts_ns: int) -> str:
        """Remove the node of a rank and return it."""
        node = group.vacate(rank)
        self._places[node] = None
        group.account.give(self._gpus, self._gpu_time.spare, ts_ns)
        return node

    def _vacate_all(self, group: Group, ts_ns: int) -> list[str]:
        ranks = [rank for rank, node in enumerate(group.nodes) if node != EMPTY]
        return [self._vacate(group, rank, ts_ns) for rank in ranks]

    def _place(self, group: Group, rank: int, spare: str, ts_ns: int) -> None:
        del self._spares[spare]
        group.place(rank, spare)
        self._places[spare] = (group, rank)
        self._gpu_time.spare.give(self._gpus, group.account, ts_ns)
        self._engine.version += 1

    def _warmed_up(self, _: int, warmed: tuple[Group, int]) -> None:
        standby, serial = warmed
        if standby.serial == serial:
            standby.role = "warm"
            standby.revive()
            self._engine.version += 1
            self._engine.record("standby_ready", group=standby.name)

    def _stand_down(self, group: Group) -> None:
        group.role = "cold"
        group.left = True
        group.serial += 1
        self._engine.version += 1

    def _take_spare(self, ts_ns: int) -> str:
        while (spare := self._best_spare()) == EMPTY or spare in self.cordoned:
            if not self._dissolve_standby(ts_ns):
                break
        return spare

    def _best_spare(self) -> str:
        first = next(iter(self._spares), EMPTY)
        if first not in self.cordoned:
            return first
        return next((node for node in self._spares if node not in self.cordoned), first)

    def _dissolve_standby(self, ts_ns: int) -> bool:
        """Turn a standby that is not ready into spares, as the run has priority."""
        for standby in self._standbys:
            if standby.role in ("warming", "cold") and standby.missing < len(standby.nodes):
                self._spares |= dict.fromkeys(self._vacate_all(standby, ts_ns))
                self._stand_down(standby)
                return True
        return False

    def _is_cordoned(self, group: Group) -> bool:
        return any(node in self.cordoned for node in group.nodes)


def _node_count(group: Group) -> int:
    """Return the number of nodes of a group."""
    return len(group.nodes) - group.missing
