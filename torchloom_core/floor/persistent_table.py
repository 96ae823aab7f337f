"""Tables that outlive the process: each entry is stored under its own key.

The kernel's parts use them for the state that a successor needs. The Weaver takes the changes
after every input and stores only those.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from typing import TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

Changes = Mapping[str, msgspec.Struct | None]
"""Key to its new entry, None if it was deleted."""


class PersistentTable(MutableMapping[str, T]):
    """A dict that tracks the entries changed since they were last taken, as ``<name>.<key>``."""

    def __init__(self, name: str) -> None:
        self._prefix = f"{name}."
        self._entries: dict[str, T] = {}
        self._taken: set[str] = set()
        self._changed: dict[str, None] = {}

    def __getitem__(self, key: str) -> T:
        return self._entries[key]

    def __setitem__(self, key: str, entry: T) -> None:
        self._entries[key] = entry
        self._changed[key] = None

    def __delitem__(self, key: str) -> None:
        del self._entries[key]
        if key in self._taken:
            self._changed[key] = None
        else:
            del self._changed[key]  # it was never stored

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def take_changes(self) -> dict[str, T | None]:
        """Return the changes since the last call, in the order of each entry's first change."""
        if not self._changed:
            return {}
        changes = {f"{self._prefix}{key}": self._entries.get(key) for key in self._changed}
        for key in self._changed:
            if key in self._entries:
                self._taken.add(key)
            else:
                self._taken.discard(key)
        self._changed.clear()
        return changes
