"""Standbys that prepare their Manager before they join, held back by the lighthouse.

Making a Manager joins a quorum. So no standby gets a prepare command before the lighthouse has
confirmed to hold its group back, and a group that gets a join command is released.
"""

from collections.abc import Iterator, Set

from torchloom_core.live.fleet.state import FleetState
from torchloom_core.live.fleet.steering import Steering
from torchloom_core.wire.commands import Command
from torchloom_core.wire.decisions import Output
from torchloom_core.wire.operations import Prepare
from torchloom_core.wire.steering import name_of_replica

_CAN_BE_HELD = frozenset({"prepare", "prepared"})
"""Actuators of a worker whose group has its own name in the lighthouse."""


class HeldStandbys:
    """The standbys that are held back, and their answers to prepare commands."""

    def __init__(self, fleet: FleetState, steering: Steering) -> None:
        self._fleet = fleet
        self._steering = steering
        self._answered: dict[str, int] = {}

    def hold_back(self, joining: Set[str]) -> list[Output]:
        """Hold back all standbys but the groups of ``joining`` workers.

        Groups held back by an earlier Weaver stay so until their hello.
        """
        view = self._steering.view
        if view is None:
            return []
        held = set(map(name_of_replica, view.held))
        held.difference_update(hello.group for hello in self._fleet.hello)
        return self._steering.hold_back(held.union(group for group, _ in self._waiting(joining)))

    def to_prepare(self, busy: Set[str]) -> list[int]:
        """Return the rows of held-back workers that are not prepared and have not refused."""
        held, hello = self._steering.held, self._fleet.hello
        return [
            row
            for group, rows in (self._waiting(busy) if held else ())
            for row in rows
            if group in held
            and "prepare" in hello[row].actuators
            and self._answered.get(hello[row].worker) != hello[row].incarnation
        ]

    def settled(self, command: Command, status: str) -> None:
        """Record an answer to a prepare command; an expired command is sent again."""
        if isinstance(command.do, Prepare) and status != "expired":
            self._answered[command.worker] = command.incarnation

    def forget(self, worker: str) -> None:
        """Forget the answer of a worker."""
        self._answered.pop(worker, None)

    def _waiting(self, busy: Set[str]) -> Iterator[tuple[str, list[int]]]:
        hello = self._fleet.hello
        for group, rows in self._fleet.standing.groups("standby").items():
            if all(
                hello[row].worker not in busy and _CAN_BE_HELD.intersection(hello[row].actuators)
                for row in rows
            ):
                yield group, rows
