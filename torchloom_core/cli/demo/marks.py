"""Which processes are a demo's: all bear its mark in their environment, whoever started them.

A mark is known again after the demo was killed, and after its pids were given to others. What a
process of a demo starts inherits it: the Weaver's broker and lighthouse, a trainer's sidecar.
"""

import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

import psutil

from torchloom_core.errors import StateError

VARIABLE = "TORCHLOOM_DEMO"
_MARK = re.compile(r"(?P<pid>[1-9]\d{0,9})-[0-9a-f]{8}")
_END_S = 10.0
_POLL_S = 0.05


@cache
def own_mark() -> str:
    """Return the mark of what this process starts."""
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def is_mark(text: str) -> bool:
    """Return whether this is some demo's mark."""
    return _MARK.fullmatch(text) is not None


def may_play(mark: str) -> bool:
    """Return whether the demo of a mark may still be there: its pid is somebody's."""
    return bool(psutil.pid_exists(int(mark.partition("-")[0])))


def end_marked(mark: str) -> None:
    """Kill every process that bears a mark, and return once none is there.

    Raises
    ------
    StateError
        If one does not end.
    """
    deadline = time.monotonic() + _END_S
    while found := list(_marked(mark)):
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        if time.monotonic() > deadline:
            raise StateError(f"a demo's process {found[0].pid} does not end")
        time.sleep(_POLL_S)


def _marked(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter(["environ"]):
        # None: it has ended, or is another user's.
        if (process.info["environ"] or {}).get(VARIABLE) == mark and process.pid != os.getpid():
            yield process
