"""Which commands are past their deadlines, without a look at all others."""

import heapq


class Deadlines:
    """The deadlines of open commands; asked with times that only rise, or fall behind again."""

    def __init__(self) -> None:
        self._added = 0
        self._ahead: list[tuple[int, int, str]] = []
        self._number: dict[str, int] = {}
        self._passed: dict[str, tuple[int, int]] = {}

    def add(self, command_id: str, deadline_ns: int) -> None:
        """Add a command."""
        self._added += 1
        self._number[command_id] = self._added
        heapq.heappush(self._ahead, (deadline_ns, self._added, command_id))

    def drop(self, command_id: str) -> None:
        """Remove a command that has ended."""
        del self._number[command_id]
        self._passed.pop(command_id, None)
        if len(self._ahead) > 2 * len(self._number) + 1000:
            self._ahead = [one for one in self._ahead if self._number.get(one[2]) == one[1]]
            heapq.heapify(self._ahead)

    def before(self, moment_ns: int) -> list[str]:
        """Return the commands whose deadline is before the moment, in the order they were added."""
        while self._ahead and self._ahead[0][0] < moment_ns:
            deadline_ns, number, command_id = heapq.heappop(self._ahead)
            if self._number.get(command_id) == number:
                self._passed[command_id] = number, deadline_ns
        found = (item for item in self._passed.items() if item[1][1] < moment_ns)
        return [command_id for command_id, _ in sorted(found, key=lambda item: item[1])]
