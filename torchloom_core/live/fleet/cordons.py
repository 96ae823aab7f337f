"""The cordoned nodes, and until when; part of the fleet state."""

from collections.abc import Iterable, Mapping

import msgspec

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.persistent_table import PersistentTable


class Cordon(msgspec.Struct, frozen=True, kw_only=True):
    """One cordoned node, until a moment (Unix epoch) or until it is uncordoned."""

    node: str
    until_ns: int | None = None


class Cordons:
    """Cordoned nodes, each for a time or until it is uncordoned.

    Attributes
    ----------
    cordons : PersistentTable of Cordon
        By node.
    nodes : frozenset of str
        The cordoned nodes.
    """

    def __init__(self) -> None:
        self.cordons: PersistentTable[Cordon] = PersistentTable("cordon")
        self.nodes: frozenset[str] = frozenset()

    @property
    def until_ns(self) -> dict[str, int]:
        """The end of each cordon that has one, nanoseconds since the Unix epoch."""
        return {c.node: c.until_ns for c in self.cordons.values() if c.until_ns is not None}

    def add(self, node: str, lasts_s: float | None, now_ns: int) -> None:
        """Cordon a node, for a time or until it is uncordoned."""
        until_ns = None if lasts_s is None else _end_ns(lasts_s, now_ns)
        self.cordons[node] = Cordon(node=node, until_ns=until_ns)
        self.nodes |= {node}

    def lasts(self, node: str, for_s: float | None, now_ns: int) -> bool:
        """Return whether the node is already cordoned for at least that long."""
        cordon = self.cordons.get(node)
        if cordon is None:
            return False
        end_ns = cordon.until_ns
        return end_ns is None or (for_s is not None and end_ns >= _end_ns(for_s, now_ns))

    def lift(self, node: str) -> None:
        """Uncordon a node at once."""
        self.cordons.pop(node, None)
        self.nodes -= {node}

    def lift_over(self, now_ns: int) -> list[str]:
        """Uncordon the nodes whose cordon has expired, and return them."""
        over = sorted(node for node, end_ns in self.until_ns.items() if end_ns <= now_ns)
        for node in over:
            self.lift(node)
        return over

    def restore(self, nodes: Iterable[str], until_ns: Mapping[str, int]) -> None:
        """Restore the cordons of an earlier Weaver."""
        for node in nodes:
            self.cordons[node] = Cordon(node=node, until_ns=until_ns.get(node))
        self.nodes = frozenset(self.cordons)


def _end_ns(lasts_s: float, now_ns: int) -> int:
    return now_ns + round(lasts_s * SECOND_NS)
