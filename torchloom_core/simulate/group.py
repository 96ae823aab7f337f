"""A replica group as the fleet model has it: its nodes, its workers, and what it is there for."""

from collections.abc import Mapping
from typing import Literal

from torchloom_core.simulate.gpu_time import Account
from torchloom_core.simulate.records import Member, MemberState

Role = Literal["run", "joined", "warm", "warming", "cold"]
"""``run``: one of the job's groups, working or coming back; the rest are standbys: ``joined`` and
``warm`` ones can take a group's place at once, ``warming`` ones soon, ``cold`` ones lack nodes."""

EMPTY = ""

_STATES: dict[Role, MemberState] = {
    "joined": "training",
    "warm": "standby",
    "warming": "left",
    "cold": "left",
}


class Group:
    """A replica group.

    Attributes
    ----------
    account : Account
        Where the time of its nodes is booked.
    nodes : list of str
        The node of each rank, ``EMPTY`` where one is lacking.
    missing : int
        How many are lacking.
    position : int
        Which of the job's groups it is, while it is one.
    ready_ns : int
        When nodes that are being provisioned will be there.
    left : bool
        Whether it went in order, not by a failure.
    working : bool
        In ``per_step`` mode: whether it takes part in the steps.
    serial : int
        Grows whenever what was planned for it is void.
    """

    __slots__ = (
        "_changes",
        "_incarnations",
        "_last",
        "_lost",
        "_members",
        "account",
        "left",
        "missing",
        "name",
        "nodes",
        "position",
        "ready_ns",
        "role",
        "serial",
        "working",
    )

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
        """Note that a process died; record whether it was alive."""
        if rank in self._lost:
            return False
        self._lost.add(rank)
        self._changes += 1
        return True

    def revive(self) -> None:
        """Start the dead workers anew, all of them if the whole group had left."""
        for rank in range(len(self.nodes)) if self.left else sorted(self._lost):
            self._incarnations[rank] += 1
        self._lost.clear()
        self._changes += 1
        self.left = False

    def vacate(self, rank: int) -> str:
        """Take the node of a rank away and return it."""
        node = self.nodes[rank]
        self.nodes[rank] = EMPTY
        self.missing += 1
        return node

    def seat(self, rank: int, node: str) -> None:
        """Give a rank a node."""
        self.nodes[rank] = self._last[rank] = node
        self.missing -= 1
        self._changes += 1

    def members(self, racks: Mapping[str, str], run_state: MemberState) -> tuple[Member, ...]:
        """Return the workers, the same objects until something changes.

        ``run_state`` is how those are that work.
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
