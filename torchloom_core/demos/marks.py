"""Find and end the processes of a demo by a mark in their environment.

Child processes inherit the mark: the Weaver's broker and lighthouse, a trainer's sidecar. It finds
them also after the demo was killed and its PIDs were reused.
"""

import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

import psutil

from torchloom_core.floor.errors import StateError

VARIABLE = "TORCHLOOM_DEMO"
_MARK = re.compile(r"(?P<pid>[1-9]\d{0,9})-[0-9a-f]{8}")
_END_S = 10.0
_POLL_S = 0.05
_LOOKS = 2


@cache
def own_mark() -> str:
    """Return the mark for the processes that this demo starts."""
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def is_mark(text: str) -> bool:
    """Return whether ``text`` is the mark of a demo."""
    return _MARK.fullmatch(text) is not None


def may_run(mark: str) -> bool:
    """Return whether the demo of a mark may still run: a process has its PID."""
    return bool(psutil.pid_exists(int(mark.partition("-")[0])))


def end_marked(mark: str) -> None:
    """Kill every process with a mark, and return once none is left; StateError if one remains.

    It looks twice: a process that is just starting has no environment yet.
    """
    deadline, looks = time.monotonic() + _END_S, 0
    while looks < _LOOKS:
        found = list(_marked(mark))
        looks = 0 if found else looks + 1
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        if found and time.monotonic() > deadline:
            raise StateError(f"process {found[0].pid} of an earlier demo does not end")
        if looks < _LOOKS:
            time.sleep(_POLL_S)


def _marked(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter(["environ"]):
        # None: the process has ended, or belongs to another user.
        if (process.info["environ"] or {}).get(VARIABLE) == mark and process.pid != os.getpid():
            yield process
