"""Expand Slurm's host lists, such as ``node[001-003,7],login``."""

import re
from collections.abc import Iterator

from torchloom_core.floor.errors import TraceError
from torchloom_core.interface.foreign import shown

MOST_HOSTS = 100_000
"""Hosts that one list may name."""

MOST_RANGES = 8
"""Brackets of one part, such as the two of ``rack[1-2]node[1-4]``."""

_NO_HOSTS = ("", "None assigned", "None", "Unknown", "(null)")
_PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_RANGES = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")


def expand(text: str) -> list[str]:
    """Return the hosts of a list, in its order; none for an empty one or ``None assigned``.

    Raises
    ------
    TraceError
        The rule and the value, if the list cannot be read or has more than ``MOST_HOSTS`` hosts.

    Examples
    --------
    >>> expand("node[08-10],login")
    ['node08', 'node09', 'node10', 'login']
    """
    text = text.strip()
    if text in _NO_HOSTS:
        return []
    parts = _PART.findall(text)
    if ",".join(parts) != text:
        raise TraceError(f"need a host list such as node[001-003,7], was {shown(text)}")
    hosts: list[str] = []
    for part in parts:
        if part.count("[") > MOST_RANGES:
            raise TraceError(f"need at most {MOST_RANGES} brackets in a host, was {shown(part)}")
        for host in _expanded(part):
            hosts.append(host)
            if len(hosts) > MOST_HOSTS:
                raise TraceError(f"need at most {MOST_HOSTS} hosts in a list, was {shown(text)}")
    return hosts


def _expanded(part: str) -> Iterator[str]:
    found = _RANGES.search(part)
    if found is None:
        yield part
        return
    before, after = part[: found.start()], part[found.end() :]
    for span in found[1].split(","):
        ends = _RANGE.fullmatch(span)
        if ends is None or int(ends[2] or ends[1]) < int(ends[1]):
            raise TraceError(f"need a range such as 001-003 in a host list, was {shown(span)}")
        for number in range(int(ends[1]), int(ends[2] or ends[1]) + 1):
            yield from _expanded(f"{before}{number:0{len(ends[1])}}{after}")
