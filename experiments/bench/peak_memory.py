"""The peak of a program's memory; imports nothing that would count for it."""

from pathlib import Path


def peak_rss_bytes() -> int:
    """Return the peak of this program alone, from ``VmHWM``.

    The ``ru_maxrss`` of a process on Linux includes that of the one it was forked from.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise OSError("/proc/self/status: need a line VmHWM, was none")
