"""Run the dashboard in a child process of the Weaver: ``torchloom weaver --dashboard``."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

_logger = logging.getLogger(__name__)

_TERMINATE_S = 10.0
_POLL_S = 0.2
_STARTS_S = 10.0
"""A dashboard that ends sooner failed to start, and is not restarted."""

_CTRL_C_S = 3.0
"""Ctrl-C ends the dashboard and the Weaver within this time of each other."""


@contextmanager
def dashboard_process(config: Path | None) -> Iterator[None]:
    """Run the dashboard, and restart it if it crashes; the Weaver never waits for it."""
    words = ["dashboard", "--beside", *(["--config", str(config)] if config else [])]
    process = _DashboardProcess([sys.executable, "-m", "torchloom_core.cli", *words])
    thread = Thread(target=process.supervise, name="dashboard", daemon=True)
    thread.start()
    try:
        yield
    finally:
        process.end()
        thread.join()


def end_with_the_weaver() -> None:
    """Send SIGTERM to this process once the Weaver that started it has ended, killed or not.

    Only the Weaver has the other end of standard input.
    """

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=wait, name="weaver", daemon=True).start()


class _DashboardProcess:
    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._over = Event()

    def end(self) -> None:
        self._over.set()

    def supervise(self) -> None:
        """Run the dashboard, and restart it after a crash, until ``end`` is called."""
        while True:
            began_s = time.monotonic()
            with subprocess.Popen(self._command, stdin=subprocess.PIPE) as process:
                status = self._wait(process)
            if status is None or self._over.wait(_CTRL_C_S):
                return
            restart = status != 0 and time.monotonic() - began_s > _STARTS_S + _CTRL_C_S
            what = "restarting it" if restart else "the Weaver continues without it"
            _logger.warning("the dashboard exited with status %d: %s", status, what)
            if not restart:
                return

    def _wait(self, process: subprocess.Popen[bytes]) -> int | None:
        """Return the exit status, or None if this process ended the dashboard."""
        while not self._over.wait(_POLL_S):
            if process.poll() is not None:
                return process.returncode
        process.terminate()
        try:
            process.wait(_TERMINATE_S)
        except subprocess.TimeoutExpired:
            process.kill()
        return None
