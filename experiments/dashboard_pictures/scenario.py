"""A real torchft run for the pictures: three groups, a standby, and a node that becomes slow.

``python -m experiments.dashboard_pictures.scenario FOLDER`` plays it until SIGINT and prints the
dashboard's link. The node of g1 is slow while ``FOLDER/slow`` exists.
"""

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from experiments.dashboard_pictures.slow_trainer import FILE
from torchloom_core.demos.dashboard import TRAINING
from torchloom_core.demos.processes import Processes
from torchloom_core.demos.scenario import counters_after, write_counters

MODULE = "experiments.dashboard_pictures.slow_trainer"
SLOW_GROUP = "g1"
POLICIES = """
[policies.straggler]
patience = 8

[policies.loss_guard]
mode = "shadow"

[policies.silence]
"""


class SlowProcesses(Processes):
    """The demo's processes, with the trainer that can become slow."""

    def spawn(
        self,
        name: str,
        command: list[str],
        environment: Mapping[str, str],
        *,
        orphaned: signal.Signals = signal.SIGKILL,
    ) -> "subprocess.Popen[bytes]":
        """Start a process; a trainer is one that can become slow."""
        words = [MODULE if word == "torchloom_threadlet.demo_trainer" else word for word in command]
        return super().spawn(name, words, environment, orphaned=orphaned)


def configured(text: str) -> str:
    """Return the demo's configuration with policies that act on the slow node."""
    return re.sub(r"(?s)\[policies\.straggler\].*\[policies\.silence\]\n", POLICIES, text)


async def play(folder: Path) -> None:
    """Play it until it is interrupted."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    processes = SlowProcesses(folder / "run", TRAINING)
    async with processes.weaver(acting=True, changed=configured):
        for place in TRAINING.places:
            path = processes.folder / f"{place.node}.prom"
            write_counters(path, counters_after(0.0))
            own = {"TORCHLOOM_TEXTFILE": str(path)}
            if place.group == SLOW_GROUP:
                own[FILE] = str(folder / "slow")
            processes.start_trainer(place, own)
        words = "--config", str(processes.config), "--port", "0"
        processes.spawn("dashboard", processes.command("dashboard", *words), {})
        printed = 0
        while True:
            text = (processes.folder / "dashboard.err").read_text(errors="replace")
            links = re.findall(r"https?://\S+token=\S+", text)
            for link in links[printed:]:
                print(link, flush=True)
            printed = len(links)
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    with suppress(asyncio.CancelledError):
        asyncio.run(play(Path(sys.argv[1])))
