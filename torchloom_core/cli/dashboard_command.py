"""``torchloom dashboard``: watch and control a run in a browser; also as a child of the Weaver."""

import asyncio
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
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec.structs import replace

from torchloom_core.cli.options import DASHBOARD, HERE, Connection, need
from torchloom_core.cli.streams import announce, log_on_stderr
from torchloom_core.cli.weaver_client import find_weaver
from torchloom_core.config.loading import DEFAULT_PATH

_logger = logging.getLogger(__name__)

_TERMINATE_S = 10.0
_POLL_S = 0.2
_STARTS_S = 10.0
"""A dashboard that ends sooner failed to start, and is not restarted."""

_CTRL_C_S = 3.0
"""Ctrl-C ends the dashboard and the Weaver within this time of each other."""


def dashboard(
    trajectory: Path | None = None,
    /,
    *,
    report: Path | None = None,
    port: Annotated[int | None, Parameter(validator=Number(gte=0, lte=65535))] = None,
    beside: Annotated[bool, Parameter(negative="", show=False)] = False,
    connection: Connection = HERE,
) -> None:
    """Serve the dashboard until SIGINT or SIGTERM.

    Prints a link that opens the page in one browser, and the next link once that is used. The
    page has the permissions of these credentials.

    Parameters
    ----------
    trajectory
        Folder of a recorded run to show. Default: the live run.
    report
        A backtest to compare the live policies with: report.json of `torchloom evaluate`, or its
        folder. Default: the newest in a folder NAME-evaluation beside the config.
    port
        Port to listen on; 0: any free port. Default: port of [dashboard] in the config.
    beside
        Started by a Weaver: end when that Weaver ends.
    """
    need(*DASHBOARD)
    if beside:
        end_with_the_weaver()
    from torchloom_core.live.dashboard.backtest import Backtest
    from torchloom_core.live.dashboard.serve import serve, serve_recorded

    config = connection.load()
    if port is not None:
        config = replace(config, dashboard=replace(config.dashboard, port=port))
    folder = (connection.config or DEFAULT_PATH).absolute().parent
    backtest = Backtest(report, folder, config.policies)
    log_on_stderr()

    if trajectory is not None:
        asyncio.run(serve_recorded(config, trajectory, backtest, announce))
        return
    address = find_weaver(connection)
    asyncio.run(serve(config, address.url, address.creds, backtest, announce, address.tls))


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
