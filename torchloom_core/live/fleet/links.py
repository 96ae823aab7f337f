"""Probe measurements of the links between workers; part of the fleet state."""

from collections.abc import Iterable

import msgspec

from torchloom_core.floor.persistent_table import PersistentTable
from torchloom_core.wire.links import Link

MAX_LINKS = 65_536
"""The most links in the table: all pairs of 256 workers."""


class MeasuredLinks:
    """The last measurement of each link; beyond the limit the oldest are dropped.

    Measurements apply to nodes: they are dropped once a worker sends a hello from another node.
    Those of workers that are gone stay until these are forgotten.

    Attributes
    ----------
    of : dict of str to dict of str to Link
        By sender and receiver. The inner dicts are never changed, only replaced.
    table : PersistentTable of Link
        All of them, the oldest first.
    """

    def __init__(self) -> None:
        self._senders_to: dict[str, dict[str, None]] = {}
        self.of: dict[str, dict[str, Link]] = {}
        self.table: PersistentTable[Link] = PersistentTable("link")

    def add(self, link: Link) -> None:
        """Store a measurement, in place of an earlier one."""
        self._forget(link.sender, link.receiver)
        self.table[_key(link.sender, link.receiver)] = link
        self.of[link.sender] = {**self.of.get(link.sender, {}), link.receiver: link}
        self._senders_to.setdefault(link.receiver, {})[link.sender] = None
        if len(self.table) > MAX_LINKS:
            oldest = self.table[next(iter(self.table))]
            self._forget(oldest.sender, oldest.receiver)

    def settle(self, worker: str, node: str) -> None:
        """Set a worker's node; measurements of it on another node are dropped."""
        from_it = self.of.get(worker, {}).values()
        to_it = [self.of[sender][worker] for sender in self._senders_to.get(worker, ())]
        moved = [link for link in from_it if link.sender_node != node]
        moved += [link for link in to_it if link.receiver_node != node]
        for link in moved:
            self._forget(link.sender, link.receiver)

    def forget(self, worker: str) -> None:
        """Drop all measurements of a worker."""
        for receiver in [*self.of.get(worker, ())]:
            self._forget(worker, receiver)
        for sender in [*self._senders_to.get(worker, ())]:
            self._forget(sender, worker)

    def restore(self, links: Iterable[Link], now_ns: int) -> None:
        """Restore the measurements of an earlier Weaver, whose clock may have been ahead."""
        for link in sorted(links, key=lambda link: (link.ts_ns, link.sender, link.receiver)):
            self.add(msgspec.structs.replace(link, ts_ns=min(link.ts_ns, now_ns)))

    def _forget(self, sender: str, receiver: str) -> None:
        if self.table.pop(_key(sender, receiver), None) is None:
            return
        left = {name: link for name, link in self.of[sender].items() if name != receiver}
        if left:
            self.of[sender] = left
        else:
            del self.of[sender]
        senders = self._senders_to[receiver]
        del senders[sender]
        if not senders:
            del self._senders_to[receiver]


def _key(sender: str, receiver: str) -> str:
    return f"{sender}.{receiver}"
