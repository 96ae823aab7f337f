"""The nodes on which nobody new is put, and until when; the fleet state keeps it."""

from collections.abc import Iterable, Mapping

from torchloom_core.clock import SECOND_NS


class Cordons:
    """Cordoned nodes, each for a time or until somebody uncordons it.

    Attributes
    ----------
    nodes : frozenset of str
        What is cordoned.
    until_ns : dict of str to int
        The end of each cordon that has one, nanoseconds since the Unix epoch.
    """

    def __init__(self) -> None:
        self.nodes: frozenset[str] = frozenset()
        self.until_ns: dict[str, int] = {}

    def add(self, node: str, lasts_s: float | None, now_ns: int) -> None:
        """Cordon a node, for a time or until it is uncordoned."""
        self.nodes |= {node}
        if lasts_s is None:
            self.until_ns.pop(node, None)
        else:
            self.until_ns[node] = _end_ns(lasts_s, now_ns)

    def lasts(self, node: str, for_s: float | None, now_ns: int) -> bool:
        """Say whether the node is cordoned for at least so long already."""
        if node not in self.nodes:
            return False
        end_ns = self.until_ns.get(node)
        return end_ns is None or (for_s is not None and end_ns >= _end_ns(for_s, now_ns))

    def lift(self, node: str) -> None:
        """Uncordon a node at once."""
        self.nodes -= {node}
        self.until_ns.pop(node, None)

    def lift_over(self, now_ns: int) -> list[str]:
        """Uncordon the nodes whose time is over, and return them."""
        over = sorted(node for node, end_ns in self.until_ns.items() if end_ns <= now_ns)
        for node in over:
            self.lift(node)
        return over

    def restore(self, nodes: Iterable[str], until_ns: Mapping[str, int]) -> None:
        """Take over what an earlier Weaver left."""
        self.nodes, self.until_ns = frozenset(nodes), dict(until_ns)


def _end_ns(lasts_s: float, now_ns: int) -> int:
    return now_ns + round(lasts_s * SECOND_NS)
