"""The dashboard beside a Weaver, in a process of its own: ``torchloom weaver --dashboard``."""

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

_GOODBYE_S = 10.0
_LOOK_S = 0.2
_STARTS_S = 10.0
"""One that ends sooner has not served anybody: it would not the next time."""

_TOGETHER_S = 3.0
"""Ctrl-C ends the dashboard and the Weaver, within so long of each other."""


@contextmanager
def dashboard_process(config: Path | None) -> Iterator[None]:
    """Run the dashboard and restart it when it ends; the Weaver goes on without it."""
    words = ["--config", str(config)] if config else []
    beside = _Beside([sys.executable, "-m", "torchloom_core.cli", "dashboard", "--beside", *words])
    keeping = Thread(target=beside.keep, name="dashboard", daemon=True)
    keeping.start()
    try:
        yield
    finally:
        beside.end()
        keeping.join()


def end_with_the_weaver() -> None:
    """Have this process told to end once the Weaver that started it is no more, killed or not.

    It holds the other end of standard input, and nobody else does.
    """

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=wait, name="weaver", daemon=True).start()


class _Beside:
    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._over = Event()

    def end(self) -> None:
        self._over.set()

    def keep(self) -> None:
        """Run it, and again when it has died, until all is over."""
        while True:
            began_s = time.monotonic()
            with subprocess.Popen(self._command, stdin=subprocess.PIPE) as process:
                status = self._wait(process)
            if status is None or self._over.wait(_TOGETHER_S):
                return
            lives = status != 0 and time.monotonic() - began_s > _STARTS_S + _TOGETHER_S
            what = "it is started again" if lives else "the Weaver goes on without one"
            _logger.warning("the dashboard has ended with status %d: %s", status, what)
            if not lives:
                return

    def _wait(self, process: subprocess.Popen[bytes]) -> int | None:
        """Return the status with which it ended by itself; None where it was ended."""
        while not self._over.wait(_LOOK_S):
            if process.poll() is not None:
                return process.returncode
        process.terminate()
        try:
            process.wait(_GOODBYE_S)
        except subprocess.TimeoutExpired:
            process.kill()
        return None
