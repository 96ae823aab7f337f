"""A replica group of the fleet model: its nodes, its workers and its role."""

from collections.abc import Mapping
from typing import Literal

from torchloom_core.lab.simulate.gpu_time import Account
from torchloom_core.lab.simulate.records import Member, MemberState

Role = Literal["run", "joined", "warm", "warming", "cold"]
"""``run``: a group of the job, training or rejoining; the others are standbys: ``joined`` and
``warm`` ones can replace a group at once, ``warming`` ones soon, ``cold`` ones lack nodes."""

EMPTY = ""

_STATES: dict[Role, MemberState] = {
    "joined": "training",
    "warm": "standby",
    "warming": "left",
    "cold": "left",
}


class Group:
    """A replica group, with an account for the time of its nodes.

    ``nodes`` has the node of each rank, ``EMPTY`` if it has none, as ``missing`` ranks. Provisioned
    nodes are ready at ``ready_ns``. ``position`` is its index among the job's groups, while it is
    one. ``left``: it left in order, not by a failure; ``working``: it takes part in the steps, in
    ``per_step`` mode. ``serial`` grows whenever scheduled callbacks for it become void.
    """

    def __init__(
        self, name: str, nodes: list[str], role: Role, account: Account, position: int
    ) -> None:
        self.name = name
        self.position = position
        self.nodes = nodes
        self.role: Role = role
        self.account = account
        self.missing = 0
        self.ready_ns = 0
        self.left = False
        self.working = True
        self.serial = 0
        self._incarnations = [1] * len(nodes)
        self._last = list(nodes)
        self._lost: set[int] = set()
        self._changes = 0
        self._members: tuple[MemberState, int, tuple[Member, ...]] = ("gone", -1, ())

    def worker(self, rank: int) -> str:
        """Return the id of a worker."""
        return f"{self.name}-{rank}"

    def lose_worker(self, rank: int) -> bool:
        """Mark a worker as dead; return whether it was alive."""
        if rank in self._lost:
            return False
        self._lost.add(rank)
        self._changes += 1
        return True

    def revive(self) -> None:
        """Restart the dead workers, or all if the whole group had left."""
        for rank in range(len(self.nodes)) if self.left else sorted(self._lost):
            self._incarnations[rank] += 1
        self._lost.clear()
        self._changes += 1
        self.left = False

    def vacate(self, rank: int) -> str:
        """Remove the node of a rank and return it."""
        node = self.nodes[rank]
        self.nodes[rank] = EMPTY
        self.missing += 1
        return node

    def place(self, rank: int, node: str) -> None:
        """Give a rank a node."""
        self.nodes[rank] = self._last[rank] = node
        self.missing -= 1
        self._changes += 1

    def members(self, racks: Mapping[str, str], run_state: MemberState) -> tuple[Member, ...]:
        """Return the workers, the same objects until something changes.

        ``run_state`` is the state of working ones.
        """
        if self.left:
            state: MemberState = "left"
        elif self.role == "run":
            state = run_state if self.working else "joining"
        else:
            state = _STATES[self.role]
        if self._members[:2] != (state, self._changes):
            members = tuple(
                Member(
                    self.worker(rank),
                    self.name,
                    rank,
                    node,
                    racks.get(node, ""),
                    "gone" if rank in self._lost else state,
                    self._incarnations[rank],
                )
                for rank, node in enumerate(self._last)
            )
            self._members = (state, self._changes, members)
        return self._members[2]
