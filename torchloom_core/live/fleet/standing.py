"""Which rows and replica groups are in which state, kept up as states change.

What is asked at every join, hello and exit must not take longer the more workers there are.
"""

from collections.abc import Iterator, Set

OVER = frozenset({"left", "gone"})
"""Final states of an incarnation."""

TRAINING = frozenset({"training", "paused"})
"""States of a worker that trains, or waits at a step boundary."""


class _Group:
    """The rows of a replica group, and how many of those present are in each state."""

    def __init__(self) -> None:
        self.rows: dict[int, None] = {}
        self.present: dict[str, int] = {}

    def count(self, state: str, more: int) -> None:
        if state not in OVER:
            self.present[state] = self.present.get(state, 0) + more
            if not self.present[state]:
                del self.present[state]

    def is_in(self, states: Set[str]) -> bool:
        return bool(self.present) and self.present.keys() <= states


class Standing:
    """The states of all rows.

    Attributes
    ----------
    state : list of str
        By row; changed by :meth:`move` alone.
    training : set of str
        The groups whose present workers all train.
    """

    def __init__(self) -> None:
        self.state: list[str] = []
        self.training: set[str] = set()
        self._group_of: list[str] = []
        self._groups: dict[str, _Group] = {}
        self._rows: dict[str, dict[int, None]] = {}
        self._ordered: dict[str, list[int]] = {}

    def add(self, group: str) -> None:
        """Add a row, which is gone until it moves."""
        row = len(self.state)
        self.state.append("gone")
        self._group_of.append(group)
        self._groups.setdefault(group, _Group()).rows[row] = None
        self._enter(row, "gone")

    def move(self, row: int, state: str) -> None:
        """Set the state of a row."""
        before = self.state[row]
        if before == state:
            return
        del self._rows[before][row]
        self._ordered.pop(before, None)
        self.state[row] = state
        self._enter(row, state)
        group = self._groups[self._group_of[row]]
        group.count(before, -1)
        group.count(state, 1)
        self._judge(self._group_of[row])

    def place(self, row: int, group: str) -> None:
        """Set the replica group of a row."""
        before = self._group_of[row]
        if before == group:
            return
        self._group_of[row] = group
        left, joined = self._groups[before], self._groups.setdefault(group, _Group())
        del left.rows[row]
        joined.rows[row] = None
        left.count(self.state[row], -1)
        joined.count(self.state[row], 1)
        self._judge(before)
        self._judge(group)
        if not left.rows:
            del self._groups[before]

    def rows_in(self, *states: str) -> list[int]:
        """Return the rows in one of the states, in ascending order."""
        found = [self._in_order(state) for state in dict.fromkeys(states)]
        found = [rows for rows in found if rows]
        return list(found[0]) if len(found) == 1 else sorted(row for rows in found for row in rows)

    def each_in(self, states: Set[str]) -> Iterator[int]:
        """Yield the rows in one of the states, in the order in which they reached it."""
        for state in sorted(states):
            yield from self._rows.get(state, ())

    def rows_of(self, group: str) -> list[int]:
        """Return the rows of a group, in ascending order; none if there is no such group."""
        found = self._groups.get(group)
        return sorted(found.rows) if found else []

    def groups(self, *states: str) -> dict[str, list[int]]:
        """Return the rows of every group whose present workers are all in ``states``."""
        rows: dict[str, list[int]] = {}
        for row in self.rows_in(*states):
            rows.setdefault(self._group_of[row], []).append(row)
        wanted = frozenset(states)
        return {group: own for group, own in rows.items() if self._groups[group].is_in(wanted)}

    def _enter(self, row: int, state: str) -> None:
        self._rows.setdefault(state, {})[row] = None
        self._ordered.pop(state, None)

    def _in_order(self, state: str) -> list[int]:
        if state not in self._ordered:
            self._ordered[state] = sorted(self._rows.get(state, ()))
        return self._ordered[state]

    def _judge(self, group: str) -> None:
        if self._groups[group].is_in(TRAINING):
            self.training.add(group)
        else:
            self.training.discard(group)
