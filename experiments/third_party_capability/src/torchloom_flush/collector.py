"""The bytes of the node that are written to files but not to disk yet."""

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")


class Unwritten:
    """Reads the kernel's ``Dirty`` and ``Writeback``."""

    def collect(self) -> dict[str, float]:
        """Return the metric ``unwritten_bytes``."""
        rows = (line.split() for line in _MEMINFO.read_text().splitlines())
        kib = {row[0]: int(row[1]) for row in rows}
        return {"unwritten_bytes": 1024.0 * (kib["Dirty:"] + kib["Writeback:"])}


def find_unwritten(pid: int, node: str) -> Unwritten | None:
    """Return the collector, None where the kernel does not tell."""
    return Unwritten() if _MEMINFO.exists() else None
