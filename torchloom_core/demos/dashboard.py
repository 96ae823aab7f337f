"""A run to control from the dashboard, until it is interrupted.

Three groups train and a fourth is a standby. No process fails: a node shows ECC errors from time to
time, and a policy proposes to migrate its group, which can be approved in the dashboard.
"""

import asyncio
import re
import time
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from torchloom_core.demos.folder import RUN
from torchloom_core.demos.processes import Processes
from torchloom_core.demos.scenario import NODE, Training, counters_after, write_counters
from torchloom_core.floor.errors import StateError
from torchloom_core.live.transport.ports import lasting_port

TRAINING = Training(config="dashboard.toml", heartbeat_s=0.2, steps=1_000_000, places=NODE.places)

_CYCLE_S = 120.0
_DEGRADED_S = 25.0
_POLL_S = 0.2
_NEWS = re.compile(r"https?://\S+token=\S+|the dashboard exited with status .*")


def play_dashboard(training: Training, folder: Path, console: Console) -> None:
    """Play the run in a folder, and print links; StateError if a process does not start."""
    processes = Processes(folder / RUN, training)
    with suppress(KeyboardInterrupt):
        asyncio.run(_play(processes, training, console))
    console.print("ended; to inspect the recorded run:", style="dim")
    console.print(f"torchloom dashboard {processes.trajectory}", markup=False)


async def _play(processes: Processes, training: Training, console: Console) -> None:
    counters = {place: processes.folder / f"{place.node}.prom" for place in training.places}
    async with processes.weaver("--dashboard", acting=True, changed=_with_a_port):
        for place, path in counters.items():
            write_counters(path, counters_after(0.0))
            processes.start_trainer(place, {"TORCHLOOM_TEXTFILE": str(path)})
        console.print("command line, from this folder: ", end="")
        hint = f"torchloom status --config {processes.config}"
        console.print(hint, style="bold", markup=False, soft_wrap=True)
        began_s, printed = time.monotonic(), 0
        while True:
            printed = print_news(processes.folder / "weaver.err", printed, console)
            degraded_s = (time.monotonic() - began_s) % _CYCLE_S - (_CYCLE_S - _DEGRADED_S)
            write_counters(counters[NODE.failing], counters_after(max(0.0, degraded_s)))
            await asyncio.sleep(_POLL_S)


def _with_a_port(config: str) -> str:
    """Fix the port, so that open pages reconnect by themselves when the dashboard is restarted."""
    return config.replace(
        "[dashboard]\nport = 0", f"[dashboard]\nport = {lasting_port('127.0.0.1')}"
    )


def print_news(log: Path, printed: int, console: Console) -> int:
    """Print the dashboard's links and ends in the Weaver's log after the first ``printed`` ones.

    Returns how many there are; raises StateError if the dashboard did not start.
    """
    found = _NEWS.findall(log.read_text(errors="replace"))
    for news in found[printed:]:
        if news.endswith("without it"):
            raise StateError(f"the dashboard did not start; see {log}")
        is_link = news.startswith("http")
        console.print("dashboard link, for one browser: " if is_link else "", end="")
        console.print(news, style="bold" if is_link else None, markup=False, soft_wrap=True)
    return len(found)
