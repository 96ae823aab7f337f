"""The keys under which the Weaver's state is stored: numbers that are used again.

A deleted entry leaves a marker under its key until another epoch takes over. If each command had a
key of its own, a Weaver that runs for a month would leave millions.
"""

_WITH_IDS = frozenset({"answer", "fault", "flight", "grant", "plan", "watch"})
"""Kinds of entries whose names never come again; each entry contains its name."""


class StateSlots:
    """Numbered keys for entries whose names never come again; other entries have their own."""

    def __init__(self) -> None:
        self._slot_of: dict[str, str] = {}
        self._free: dict[str, list[str]] = {}
        self._used: dict[str, int] = {}

    def take(self, name: str) -> tuple[str, bool]:
        """Return the key of an entry that is to be stored, and whether it begins to use it."""
        kind = name.partition(".")[0]
        if kind not in _WITH_IDS:
            return name, False
        if slot := self._slot_of.get(name, ""):
            return slot, False
        free = self._free.get(kind)
        if free:
            slot = free.pop()
        else:
            self._used[kind] = self._used.get(kind, 0) + 1
            slot = f"{kind}.{self._used[kind]}"
        self._slot_of[name] = slot
        return slot, True

    def release(self, name: str) -> str:
        """Return the key of an entry that is to be deleted; another may use it from now on."""
        slot = self._slot_of.pop(name, "")
        if not slot:
            return name
        self._free.setdefault(slot.partition(".")[0], []).append(slot)
        return slot
