"""A run to drive from the dashboard's page, until it is interrupted.

Three groups train and a fourth stands by. Nobody dies: a node falls ill now and again, a policy
asks to move its group, and whoever sits at the page may approve it, turn knobs, and stop it all.
"""

import asyncio
import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from torchloom_core.cli.demo.folder import RUN
from torchloom_core.cli.demo.processes import Processes
from torchloom_core.cli.demo.scenario import NODE, Training, symptoms, write_counters
from torchloom_core.errors import StateError
from torchloom_core.trajectory.layout import run_folder

TRAINING = Training(config="dashboard.toml", heartbeat_s=0.2, steps=1_000_000, places=NODE.places)

_RUN = "demo"
_ILL_EVERY_S = 120.0
_ILL_FOR_S = 25.0
_POLL_S = 0.2


def play_dashboard(training: Training, folder: Path, console: Console) -> None:
    """Play it in a folder, and print the links that open the page.

    Raises
    ------
    StateError
        If a process does not start.
    """
    processes = Processes(folder / RUN, training)
    with suppress(KeyboardInterrupt):
        asyncio.run(_play(processes, training, console))
    console.print("ended; to look back:", style="dim")
    console.print(f"torchloom dashboard {run_folder(processes.state_dir, _RUN)}", markup=False)


async def _play(processes: Processes, training: Training, console: Console) -> None:
    processes.folder.mkdir(parents=True)
    counters = {place: processes.folder / f"{place.node}.prom" for place in training.places}
    async with processes.weaver(acting=True):
        try:
            for place, path in counters.items():
                write_counters(path, symptoms(0.0))
                processes.start_trainer(place, {"TORCHLOOM_TEXTFILE": str(path)})
            dashboard = _DashboardProcess(processes, console)
            console.print("its command line, from this folder: ", end="")
            hint = f"torchloom status --config {processes.config}"
            console.print(hint, style="bold", markup=False, soft_wrap=True)
            began_s = time.monotonic()
            while True:
                dashboard.look()
                ill_s = (time.monotonic() - began_s) % _ILL_EVERY_S - (_ILL_EVERY_S - _ILL_FOR_S)
                write_counters(counters[NODE.sick], symptoms(max(0.0, ill_s)))
                await asyncio.sleep(_POLL_S)
        finally:
            processes.kill_trainers()


class _DashboardProcess:
    """The dashboard of the demo: prints its links, and starts it again where it dies."""

    def __init__(self, processes: Processes, console: Console) -> None:
        self._processes, self._console = processes, console
        self._printed = self._printed_before = 0
        self._process = self._start()

    def _start(self, port: str = "0") -> subprocess.Popen[bytes]:
        words = "--config", str(self._processes.config), "--port", port
        return self._processes.spawn("dashboard", self._processes.command("dashboard", *words), {})

    def look(self) -> None:
        """Print what links are new; StateError where it has ended before it printed one."""
        path = self._processes.folder / "dashboard.err"
        status = self._process.poll()
        links = re.findall(r"https?://\S+token=\S+", path.read_text(errors="replace"))
        for link in links[self._printed :]:
            self._console.print("for one browser, until Ctrl-C: ", end="")
            self._console.print(link, style="bold", markup=False, soft_wrap=True)
        self._printed = len(links)
        if status is None:
            return
        if self._printed == self._printed_before:
            raise StateError(f"the dashboard did not start; see {path}")
        self._printed_before = self._printed
        self._console.print(f"the dashboard has ended with status {status}: it is started again")
        # Where it was: pages that are open come back by themselves.
        self._process = self._start(str(urlsplit(links[-1]).port))
