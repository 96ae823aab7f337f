"""A run to control from the dashboard, until it is interrupted.

Three groups train and a fourth is a standby. No process fails: a node shows ECC errors from time to
time, and a policy proposes to migrate its group, which can be approved in the dashboard.
"""

import asyncio
import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from torchloom_core.demos.folder import RUN
from torchloom_core.demos.processes import Processes
from torchloom_core.demos.scenario import NODE, Training, counters_after, write_counters
from torchloom_core.floor.errors import StateError

TRAINING = Training(config="dashboard.toml", heartbeat_s=0.2, steps=1_000_000, places=NODE.places)

_CYCLE_S = 120.0
_DEGRADED_S = 25.0
_POLL_S = 0.2


def play_dashboard(training: Training, folder: Path, console: Console) -> None:
    """Play the run in a folder, and print links; StateError if a process does not start."""
    processes = Processes(folder / RUN, training)
    with suppress(KeyboardInterrupt):
        asyncio.run(_play(processes, training, console))
    console.print("ended; to inspect the recorded run:", style="dim")
    console.print(f"torchloom dashboard {processes.trajectory}", markup=False)


async def _play(processes: Processes, training: Training, console: Console) -> None:
    counters = {place: processes.folder / f"{place.node}.prom" for place in training.places}
    async with processes.weaver(acting=True):
        for place, path in counters.items():
            write_counters(path, counters_after(0.0))
            processes.start_trainer(place, {"TORCHLOOM_TEXTFILE": str(path)})
        dashboard = _DashboardProcess(processes, console)
        console.print("command line, from this folder: ", end="")
        hint = f"torchloom status --config {processes.config}"
        console.print(hint, style="bold", markup=False, soft_wrap=True)
        began_s = time.monotonic()
        while True:
            dashboard.poll()
            degraded_s = (time.monotonic() - began_s) % _CYCLE_S - (_CYCLE_S - _DEGRADED_S)
            write_counters(counters[NODE.failing], counters_after(max(0.0, degraded_s)))
            await asyncio.sleep(_POLL_S)


class _DashboardProcess:
    """The dashboard of the demo: print its links, and restart it if it crashes."""

    def __init__(self, processes: Processes, console: Console) -> None:
        self._processes, self._console = processes, console
        self._printed = self._printed_before = 0
        self._process = self._start()

    def _start(self, port: str = "0") -> subprocess.Popen[bytes]:
        words = "--config", str(self._processes.config), "--port", port
        return self._processes.spawn("dashboard", self._processes.command("dashboard", *words), {})

    def poll(self) -> None:
        """Print new links; raise StateError if the dashboard ended before it printed one."""
        path = self._processes.folder / "dashboard.err"
        status = self._process.poll()
        links = re.findall(r"https?://\S+token=\S+", path.read_text(errors="replace"))
        for link in links[self._printed :]:
            self._console.print("dashboard link, for one browser: ", end="")
            self._console.print(link, style="bold", markup=False, soft_wrap=True)
        self._printed = len(links)
        if status is None:
            return
        if self._printed == self._printed_before:
            raise StateError(f"the dashboard did not start; see {path}")
        self._printed_before = self._printed
        self._console.print(f"the dashboard exited with status {status}: restarting it")
        # On the same port, so that open pages reconnect by themselves.
        self._process = self._start(str(urlsplit(links[-1]).port))
