"""A run to drive from the control room's page, until it is interrupted.

Three groups train and a fourth stands by. Nobody dies: a node falls ill now and again, a policy
asks to move its group, and whoever sits at the page may approve it, turn knobs, and stop it all.
"""

import asyncio
import re
import time
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from torchloom_core.cli.demo.folder import RUN
from torchloom_core.cli.demo.processes import Processes
from torchloom_core.cli.demo.scenario import NODE, Training, symptoms, write_counters
from torchloom_core.trajectory.layout import run_folder

TRAINING = Training(config="room.toml", heartbeat_s=0.2, steps=1_000_000, places=NODE.places)

_RUN = "demo"
_ILL_EVERY_S = 120.0
_ILL_FOR_S = 25.0
_POLL_S = 0.2


def play_room(training: Training, folder: Path, console: Console) -> None:
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
    console.print(f"torchloom room {run_folder(processes.state_dir, _RUN)}", markup=False)


async def _play(processes: Processes, training: Training, console: Console) -> None:
    processes.folder.mkdir(parents=True)
    counters = {place: processes.folder / f"{place.node}.prom" for place in training.places}
    async with processes.weaver(acting=True):
        try:
            for place, path in counters.items():
                write_counters(path, symptoms(0.0))
                processes.start_trainer(place, {"TORCHLOOM_TEXTFILE": str(path)})
            command = ["room", "--config", str(processes.config)]
            room = processes.spawn("room", processes.command(*command), {})
            printed = 0
            began_s = time.monotonic()
            while True:
                links = _links(processes.folder / "room.err")
                for link in links[printed:]:
                    console.print("for one browser, until Ctrl-C: ", end="")
                    console.print(link, style="bold", markup=False, soft_wrap=True)
                printed = len(links)
                await processes.wait_for(lambda: room.poll() is None, room, "room")
                ill_s = (time.monotonic() - began_s) % _ILL_EVERY_S - (_ILL_EVERY_S - _ILL_FOR_S)
                write_counters(counters[NODE.sick], symptoms(max(0.0, ill_s)))
                await asyncio.sleep(_POLL_S)
        finally:
            processes.kill_trainers()


def _links(path: Path) -> list[str]:
    return re.findall(r"https?://\S+token=\S+", path.read_text(errors="replace"))
