"""Stop a trainer and its children, and let them go on, also if this sidecar is killed meanwhile."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

_SETTLE_S = 0.25
"""Frameworks send heartbeats again, each tenth of a second, before any rank trains."""


class Stopped:
    """A stopped trainer, from construction to :meth:`go_on`.

    A stopped trainer cannot start another sidecar. So a shell waits beside: when this process ends,
    the shell continues the trainer, which still waits at its step boundary.

    Raises OSError if the trainer has ended.

    Parameters
    ----------
    pid : int
        The trainer's, this process's parent.

    Attributes
    ----------
    pids : list of int
        The trainer, and its children in its session, as the workers of a data loader.
    """

    def __init__(self, pid: int) -> None:
        if os.getppid() != pid:
            raise ProcessLookupError("it has ended")
        self.pids = [pid, *_children(pid, os.getsid(pid))]
        names = " ".join(map(str, self.pids))
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", f"read nothing; kill -CONT {names}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._signal(signal.SIGSTOP)

    async def go_on(self) -> None:
        """Continue the processes."""
        self._signal(signal.SIGCONT)
        if self._shell.stdin is not None:
            self._shell.stdin.close()
        await asyncio.to_thread(self._shell.wait)
        await asyncio.sleep(_SETTLE_S)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _children(pid: int, session: int) -> Iterator[int]:
    """Yield all descendants in a session: a sidecar and its like have another one."""
    for listed in Path("/proc", str(pid), "task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, listed.read_text().split()):
                with contextlib.suppress(OSError):
                    if os.getsid(child) == session:
                        yield child
                        yield from _children(child, session)
