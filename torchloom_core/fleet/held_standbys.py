"""Standbys that may make their Manager before they join, since the lighthouse holds them back.

Making a Manager is what joins a quorum. So nobody is told to prepare before the lighthouse has
heard whom to hold, and whoever is told to join is held no more.
"""

from collections.abc import Iterator, Set

from torchloom_core.fleet.state import FleetState
from torchloom_core.fleet.steering import Steering
from torchloom_core.wire.events import Output
from torchloom_core.wire.messages import Command, Prepare
from torchloom_core.wire.steering import name_of_replica

_CAN_BE_HELD = frozenset({"prepare", "prepared"})
"""What a worker says whose group bears its own name in the lighthouse."""


class HeldStandbys:
    """Who is held back, and who has been told to prepare."""

    def __init__(self, fleet: FleetState, steering: Steering) -> None:
        self._fleet = fleet
        self._steering = steering
        self._answered: dict[str, int] = {}

    def hold_back(self, joining: Set[str]) -> list[Output]:
        """Have all standbys held back but the workers that are told to join.

        Whom an earlier Weaver held stays held until the group says hello.
        """
        view = self._steering.view
        if view is None:
            return []
        held = set(map(name_of_replica, view.held))
        held.difference_update(hello.group for hello in self._fleet.hello)
        return self._steering.hold_back(held.union(group for group, _ in self._waiting(joining)))

    def to_prepare(self, busy: Set[str]) -> list[int]:
        """Return the rows of those that are held back, are not prepared and have not refused."""
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
        """Take note of who has answered, for good or ill; one whose time ran out is asked again."""
        if isinstance(command.do, Prepare) and status != "expired":
            self._answered[command.worker] = command.incarnation

    def _waiting(self, busy: Set[str]) -> Iterator[tuple[str, list[int]]]:
        hello = self._fleet.hello
        for group, rows in self._fleet.groups("standby").items():
            if all(
                hello[row].worker not in busy and _CAN_BE_HELD.intersection(hello[row].actuators)
                for row in rows
            ):
                yield group, rows
