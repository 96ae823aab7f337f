"""Play a script on a live run: what the chaos and the soak test of the fence do alike."""

import asyncio
import contextlib
import logging
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from experiments.chaos import record
from experiments.chaos.hosts import Host, alone
from experiments.chaos.person import Requester
from experiments.chaos.processes import POLL_S, START_S, Place, strike
from torchloom_core.cli.options import Connection
from torchloom_core.floor.errors import TorchloomError
from torchloom_core.floor.first_done import end_all

_SHOW_EVERY_S = 0.1


class PlayError(TorchloomError):
    """The run did not start, or did not go on."""


class LivePlay:
    """One live run, the tasks that keep it up, and how often what was struck."""

    def __init__(self, place: Place, seed: int, hosts: Sequence[Host] = ()) -> None:
        self._place = place
        self._hosts = hosts or alone(place, seed)
        self._requests = record.Record(place.folder / record.REQUESTS)
        self._frozen: dict[int, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.struck: Counter[str] = Counter()
        self.doing = "starting"

    async def run(self, show: Callable[[], None]) -> None:
        """Play from the first start to the last end; ``show`` is called ten times a second."""
        raise NotImplementedError

    def _requester_named(self, name: str) -> Requester:
        return Requester(Connection(config=self._place.config), self._requests, name)

    def _go(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    async def _start_weaver(self) -> None:
        for host in self._hosts:
            self._go(host.keep_up())
            self._go(host.watch_broker())
        await self._until(self._weavers_are_ready, START_S, "Weavers that are ready")

    def _weavers_are_ready(self) -> bool:
        return all(host.ready for host in self._hosts)

    async def _cancel_all(self) -> None:
        await end_all(*self._tasks)

    async def _until(self, what: Callable[[], bool], limit_s: float, name: str) -> None:
        end = time.monotonic() + limit_s
        while not what():
            if time.monotonic() > end:
                raise PlayError(
                    f"need {name} within {limit_s:g} s, was none; see {self._place.folder}"
                )
            await asyncio.sleep(POLL_S)

    def _kill_or_freeze(self, pid: int, kind: str, target: str, lasts_s: float) -> None:
        if kind == "kill":
            strike(pid, signal.SIGKILL)
        elif strike(pid, signal.SIGSTOP):
            self._frozen[pid] = self._go(self._thaw(pid, target, lasts_s))

    async def _thaw(self, pid: int, target: str, lasts_s: float) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            await asyncio.sleep(lasts_s)
            process.resume()
        del self._frozen[pid]
        self._place.timeline.add("thaw", target=target, pid=pid)

    async def _show(self, show: Callable[[], None]) -> None:
        while True:
            show()
            await asyncio.sleep(_SHOW_EVERY_S)


_Play = TypeVar("_Play", bound=LivePlay)


def play_with_bar(
    make: Callable[[], _Play],
    folder: Path,
    log: str,
    total: int,
    show: Callable[[_Play], tuple[int, str]],
    console: Console,
) -> None:
    """Play in an emptied folder with a progress bar: ``show`` returns how much is done, and text.

    Warnings of servers that die under the client's connection go to the file ``log``.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    logging.basicConfig(
        level=logging.WARNING,
        filename=folder / log,
        format="%(asctime)s %(name)s: %(message)s",
        force=True,
    )
    run = make()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task("starting", total=total)

        def update() -> None:
            done, text = show(run)
            progress.update(bar, completed=done, description=text)

        asyncio.run(run.run(update))
