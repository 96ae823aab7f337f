"""Measure whether standby tasks or dashboards slow training, in alternating blocks.

``python experiments/undisturbed/run.py`` plays scenes with a real Weaver, its broker and a rank
that trains: a standby that computes a landscape, one that previews a change, and a dashboard
with twenty pages, one of which takes nothing, among two hundred pretended ranks. In each, blocks
with it and without follow each other as ABBA; the result is the geometric mean of the ratios of
their medians, with the 95 % interval of Student's t over the pairs.
"""

import argparse
import asyncio
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy import stats

from experiments.bench.machine import describe
from experiments.dashboard_scale.run import Dashboard, Page, Talkers, change
from experiments.many_workers.run import Person, Weaver, give_up, until
from torchloom_core.floor.first_done import end_all

HERE = Path(__file__).parent
SETTLE_S = 1.0
"""Left out at the beginning of a block."""

LANDSCAPE = ("landscape", "--points", "20000", "--for", "1h", "--side", "101")
PREVIEW = ("preview", "lr=0.02", "--steps", "2000", "--for", "1h")
PRETENDED = 200
PAGES = 20
ENDED_BY_CTRL_C = 130

console = Console(width=None if sys.stdout.isatty() else 110)

With = Callable[[], AbstractAsyncContextManager[None]]
ChangeOf = Callable[[str], Awaitable[float]]


@dataclass
class Block:
    """What was measured in a block, seconds."""

    step: list[float] = field(default_factory=list)
    status: list[float] = field(default_factory=list)
    change: list[float] = field(default_factory=list)


class Scene:
    """A Weaver, a live rank on a core of its own, and a person."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.weaver = Weaver(folder)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._journal = folder / "steps"
        (folder / "torchloom.toml").write_text(
            "[weaver]\nstate_dir = 'state'\nshow = ['loss']\n"
            "[arbiter]\ncooldown_s = 0\n[dashboard]\nport = 0\n"
        )

    async def __aenter__(self) -> "Scene":
        await self.weaver.start()
        self.person = Person(await self.weaver.connect("operator"))
        self.spawn("live.py", "live", self._journal, cores=(0,))
        await until(lambda: self._journal.exists() and bool(self._journal.read_text()), 0.05)
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self.weaver.end()

    def spawn(self, script: str, group: str, *arguments: object, cores: tuple[int, ...]) -> None:
        """Start a script of this folder as the trainer of a group."""
        own = {
            "TORCHLOOM_JOIN": str(self.weaver.state / "join.json"),
            "TORCHLOOM_GROUP": group,
            "TORCHLOOM_ROLE": "standby" if script == "standby.py" else "",
        }
        taskset = ["taskset", "-c", ",".join(map(str, cores))]
        command = [*taskset, sys.executable, str(HERE / script), *map(str, arguments)]
        with (self.folder / f"{group}.err").open("w") as errors:
            self._processes.append(
                subprocess.Popen(command, env=os.environ | own, cwd=self.folder, stderr=errors)
            )

    async def state(self, worker: str) -> str:
        """Return the state in which a worker is."""
        rows = (await self.person.ask("status", {"after": ""}))["workers"]
        assert isinstance(rows, list)
        return next((row["state"] for row in rows if row["worker"] == worker), "")

    async def block(self, seconds: float, change_of: ChangeOf | None = None) -> Block:
        """Measure for so long."""
        found = Block()
        await asyncio.sleep(SETTLE_S)
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            sent = time.monotonic()
            await self.person.ask("status", {"workers": False})
            found.status.append(time.monotonic() - sent)
            if change_of is not None:
                name = f"g{random.randrange(PRETENDED // 8)}-0"
                found.change.append(await change_of(name))
            await asyncio.sleep(0.2)
        for line in self._journal.read_text().splitlines():
            end, took = map(float, line.split())
            if began <= end <= time.monotonic():
                found.step.append(took)
        return found


def standby_task(scene: Scene, words: tuple[str, ...]) -> With:
    """Return what has the standby at work until the block is over, as Ctrl-C ends it."""

    @asynccontextmanager
    async def looking() -> AsyncIterator[None]:
        command = ["taskset", "-c", "1", sys.executable, "-m", "torchloom_core.cli", *words]
        look = await asyncio.create_subprocess_exec(
            *command, cwd=scene.folder, stdout=subprocess.DEVNULL
        )
        yield
        look.send_signal(signal.SIGINT)
        if (status := await look.wait()) != ENDED_BY_CTRL_C:
            sys.exit(f"torchloom {words[0]} ended with status {status}")

    return looking


def crowd(dashboard: Dashboard) -> With:
    """Return what has nineteen more pages look at the dashboard, one of which takes nothing."""

    @asynccontextmanager
    async def looking() -> AsyncIterator[None]:
        sockets = [await dashboard.connect() for _ in range(PAGES - 1)]
        tasks = [asyncio.create_task(Page(socket).listen()) for socket in sockets[1:]]
        yield
        await end_all(*tasks)
        for socket in sockets[1:]:
            await socket.close()
        sockets[0].transport.abort()

    return looking


async def play_standby_task(
    words: tuple[str, ...], folder: Path, options: argparse.Namespace
) -> list[tuple[Block, Block]]:
    """Play blocks in which a standby on the other core is at work, and such in which it waits."""
    async with Scene(folder) as scene:
        scene.spawn("standby.py", "s0", cores=(1,))
        began = time.monotonic()
        while await scene.state("s0-0") != "standby":
            give_up(began)
            await asyncio.sleep(0.1)
        return await pairs(
            words[0], options, standby_task(scene, words), lambda: scene.block(options.seconds)
        )


async def play_crowd(folder: Path, options: argparse.Namespace) -> list[tuple[Block, Block]]:
    """Play blocks with twenty pages, and such with one."""
    async with Scene(folder) as scene:
        talkers = Talkers(await scene.weaver.connect("weaver"), PRETENDED, options.seed)
        await talkers.start()
        dashboard = Dashboard(folder)
        await dashboard.start()
        page = Page(await dashboard.connect())
        listening = asyncio.create_task(page.listen())
        await until(lambda: len(page.places) > PRETENDED and len(page.values) > PRETENDED, 0.05)
        measured = await pairs(
            "a crowd",
            options,
            crowd(dashboard),
            lambda: scene.block(options.seconds, lambda name: change(talkers, page, name)),
        )
        for task in (listening, talkers.beating):
            task.cancel()
        dashboard.process.terminate()
        await dashboard.process.wait()
    return measured


async def pairs(
    title: str,
    options: argparse.Namespace,
    disturbing: With,
    measure: Callable[[], Awaitable[Block]],
) -> list[tuple[Block, Block]]:
    """Return pairs of a block with and one without, the first of them in turns."""
    measured = []
    for number in track(range(options.pairs), title, console=console):
        pair = {}
        for with_it in (True, False) if number % 2 else (False, True):
            async with disturbing() if with_it else nullcontext():
                pair[with_it] = await measure()
        measured.append((pair[True], pair[False]))
    return measured


def ratio(measured: list[tuple[Block, Block]], what: str) -> tuple[float, float, float]:
    """Return the geometric mean of the ratios of medians, and its 95 % interval."""
    logs = [
        math.log(statistics.median(getattr(a, what)) / statistics.median(getattr(b, what)))
        for a, b in measured
    ]
    middle = statistics.fmean(logs)
    width = statistics.stdev(logs) / math.sqrt(len(logs)) * stats.t.ppf(0.975, len(logs) - 1)
    return math.exp(middle), math.exp(middle - width), math.exp(middle + width)


def main() -> None:
    """Play the scenes in temporary folders, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenes", default=",".join(SCENES), help="which")
    parser.add_argument("--pairs", type=int, default=12, help="of blocks [12]")
    parser.add_argument("--seconds", type=float, default=6.0, help="a block [6]")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random.seed(options.seed)
    table = Table("scene", "of", "without, ms", "ratio", "95 %", title=describe()["cpu"])
    for name in options.scenes.split(","):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            measured = asyncio.run(SCENES[name](Path(folder), options))
        for what, title in MEASURES.items():
            if all(getattr(block, what) for pair in measured for block in pair):
                middle, low, high = ratio(measured, what)
                without = statistics.median(x for _, b in measured for x in getattr(b, what))
                bounds = f"{low:.3f} to {high:.3f}"
                table.add_row(name, title, f"{1e3 * without:.2f}", f"{middle:.3f}", bounds)
    console.print(table)


SCENES = {
    "landscape": partial(play_standby_task, LANDSCAPE),
    "preview": partial(play_standby_task, PREVIEW),
    "crowd": play_crowd,
}
MEASURES = {
    "step": "a step of the live rank",
    "status": "an answer of the Weaver",
    "change": "a value, until the first page has it",
}

if __name__ == "__main__":
    main()
