"""Let thousands of workers come at once, each with its own connection and credentials.

``python experiments/many_workers/herd.py --workers 10000 --within 5``; the Weaver and its
nats-server are real, all policies are there in shadow mode and two predictors forecast.
"""

import argparse
import asyncio
import io
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import nats.errors
from rich.console import Console

from experiments.many_workers.lost_telemetry import LostTelemetry
from experiments.many_workers.run import RUN, Person, Weaver
from experiments.many_workers.thin_worker import COUNTS, Counters, Herd, act
from torchloom_core.cli.status_command import render
from torchloom_core.live.trajectory.layout import run_folder
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.wire.events import Tick
from torchloom_core.wire.messages import Telemetry
from torchloom_core.wire.status import Status

POLICIES = (
    "allreduce_tuner",
    "checkpoint_interval",
    "failure_forecast",
    "hang",
    "lemon_nodes",
    "loss_guard",
    "membership",
    "role_balance",
    "silence",
    "straggler",
    "thresholds",
    "uploads",
)
PREDICTORS = ("ewma", "trend")
LOOKS_S = (1, 2, 5, 10, 20, 30, 60, 120)
PRESS_EVERY_S = 0.5
PATIENCE_S = 300.0
_QUICK = 3.0
"""A quick run, on whatever machine, may take so many times the limit."""

MEGABYTE = 1 << 20

console = Console(highlight=False)


class Herds:
    """The processes of the workers."""

    def __init__(self, options: argparse.Namespace, join: Path) -> None:
        spawn = multiprocessing.get_context("spawn")
        share = -(-options.workers // options.processes)
        self.counters = [Counters() for _ in range(options.processes)]
        self._processes = []
        for number, counters in enumerate(self.counters):
            first, last = number * share, min((number + 1) * share, options.workers)
            source = f"127.0.0.{number + 2}"
            herd = Herd(first, last, options.within, options.metrics, source, str(join))
            self._processes.append(spawn.Process(target=act, args=(herd, counters), daemon=True))

    def start(self) -> None:
        """Let them come."""
        for process in self._processes:
            process.start()

    def end(self) -> None:
        """Kill them."""
        for process in self._processes:
            process.kill()
            process.join()

    def get(self, name: str) -> int:
        """Return a number of :data:`COUNTS`, of all workers."""
        return sum(counters.get(name) for counters in self.counters)


class Usage(NamedTuple):
    """What a process has used so far."""

    cpu_s: float
    memory_bytes: int

    @classmethod
    def of(cls, pid: int) -> "Usage":
        """Read it from ``/proc``."""
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return cls(cpu_s, int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))


class Measured(NamedTuple):
    """A result with its limit; None: none is set."""

    text: str
    value: float
    most: float | None = None

    @property
    def is_kept(self) -> bool:
        """Whether the value is within its limit."""
        return self.most is None or self.value <= self.most

    def __str__(self) -> str:
        limit = "" if self.most is None else f"  (at most {self.most:g})"
        mark = "" if self.is_kept else "  EXCEEDED"
        return f"{self.text}: {self.value:,.2f}{limit}{mark}"


class Presser:
    """Presses the kill switch every half second, and keeps the slowest answer."""

    def __init__(self, person: Person) -> None:
        self._person = person
        self.stops = True
        self.worst_s = 0.0
        self.failed = 0

    async def run(self) -> None:
        """Stop and resume actions for ever; with ``stops`` off, only resume."""
        while True:
            for verb in ("actions.stop", "actions.resume") if self.stops else ("actions.resume",):
                began_s = time.monotonic()
                try:
                    await self._person.ask(verb)
                except (nats.errors.Error, OSError, ValueError):
                    self.failed += 1
                else:
                    self.worst_s = max(self.worst_s, time.monotonic() - began_s)
            await asyncio.sleep(PRESS_EVERY_S)


class Trial:
    """One run with a herd."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder, self._options = folder, options
        policies = "".join(f"[policies.{name}]\nmode = 'shadow'\n" for name in POLICIES)
        predictors = "".join(f"[predictors.{name}]\n" for name in PREDICTORS)
        self._weaver = Weaver(folder, policies + predictors)
        self.results: list[Measured] = []

    def _note(self, text: str, value: float, most: float | None = None) -> None:
        if most and self._options.quick:
            most *= _QUICK
        self.results.append(Measured(text, value, most))
        console.print(str(self.results[-1]))

    async def play(self) -> None:
        """Let the herd come, measure, and end all."""
        weaver, options = self._weaver, self._options
        await weaver.start()
        herds = Herds(options, weaver.state / "join.json")
        person, second = [Person(await weaver.connect("operator")) for _ in range(2)]
        presser = Presser(second)
        pressing = asyncio.create_task(presser.run()) if options.press else None
        try:
            herds.start()
            await self._enrol(herds)
            await self._steady(herds)
            presser.stops = False
            await self._set_knob(herds, person)
            await self._ask_status(person)
            if pressing is not None:
                pressing.cancel()
                self._note("slowest answer of the kill switch, s", presser.worst_s, 1.0)
                self._note("requests of the kill switch without answer", presser.failed)
            if options.kill == "broker":
                await self._kill_broker(herds)
            for counters in herds.counters:
                counters.stop_beats()
            await self._read_all(person)
        finally:
            if pressing is not None:
                pressing.cancel()
            herds.end()
            for one in (person, second):
                await one.close()
            status = weaver.end()
        console.print(f"the Weaver ended with status {status}")
        self._read_record(herds)

    async def _enrol(self, herds: Herds) -> None:
        count, began_s = self._options.workers, time.monotonic()
        before_s = Usage.of(self._weaver.pid).cpu_s
        looks = list(LOOKS_S)
        while (up := herds.get("up")) < count:
            took_s = time.monotonic() - began_s
            if looks and took_s >= looks[0]:
                looks.pop(0)
                console.print(f"  after {took_s:.0f} s: {_counts(herds)}")
            if took_s > PATIENCE_S:
                sys.exit(f"gave up after {took_s:.0f} s: {up} of {count} are connected")
            await asyncio.sleep(0.05)
        took_s = time.monotonic() - began_s
        self._note("all enrolled and connected after, s", took_s, 60.0)
        used_s = Usage.of(self._weaver.pid).cpu_s - before_s
        self._note("the Weaver's time on a core for it, ms a worker", 1e3 * used_s / count)
        console.print(f"  {_counts(herds)}")
        for name in ("joins", "hellos"):
            self._note(f"{name.replace('_', ' ')} a worker", herds.get(name) / count)

    async def _steady(self, herds: Herds) -> None:
        """Measure what a second costs once all are there."""
        await asyncio.sleep(self._options.settle)
        hellos, began_s = herds.get("hellos"), time.monotonic()
        pids = {"Weaver": self._weaver.pid, "server": int(str(self._weaver.broker["pid"]))}
        before = {name: Usage.of(pid) for name, pid in pids.items()}
        await asyncio.sleep(self._options.steady)
        took_s = time.monotonic() - began_s
        for name, pid in pids.items():
            now = Usage.of(pid)
            ours = name == "Weaver"
            used = (now.cpu_s - before[name].cpu_s) / took_s
            self._note(f"{name}, cores", used, 0.5 if ours else None)
            self._note(f"{name}, MB", now.memory_bytes / MEGABYTE, 400.0 if ours else None)
        self._note("hellos a worker meanwhile", (herds.get("hellos") - hellos) / herds.get("up"))

    async def _set_knob(self, herds: Herds, person: Person) -> None:
        count, began_s = self._options.workers, time.monotonic()
        answer = await person.ask("knob.set", {"knob": "lr", "value": 0.2})
        if not answer["ok"]:
            sys.exit(f"knob.set: {answer['text']}")
        await _until(lambda: herds.get("applied") >= count)
        self._note("a knob applied by all after, s", time.monotonic() - began_s, 10.0)
        while await self._flights(person):
            _give_up(began_s)
            await asyncio.sleep(0.1)
        self._note("and reported after, s", time.monotonic() - began_s, 10.0)
        self._note("commands carried out twice", herds.get("applied") - count, 0)

    async def _flights(self, person: Person) -> int:
        page = await person.ask("status", {"workers": False})
        return int(str(page["flights_in_all"]))

    async def _ask_status(self, person: Person) -> None:
        """Take the time of ``torchloom status`` from the request to the text on a terminal."""
        began_s = time.monotonic()
        answer = msgspec.convert(await person.ask("status", {"summary": True}), Status)
        Console(file=io.StringIO(), width=120).print(render(answer))
        self._note("torchloom status, s", time.monotonic() - began_s, 1.0)

    async def _kill_broker(self, herds: Herds) -> None:
        pid = int(str(self._weaver.broker["pid"]))
        hellos, began_s = herds.get("hellos"), time.monotonic()
        os.kill(pid, signal.SIGKILL)
        await _until(lambda: herds.get("up") < self._options.workers)
        await _until(lambda: herds.get("up") >= self._options.workers)
        self._note("all back after a kill of the server, s", time.monotonic() - began_s, 30.0)
        await asyncio.sleep(self._options.settle)
        self._note("hellos a worker", (herds.get("hellos") - hellos) / self._options.workers)

    async def _read_all(self, person: Person) -> None:
        """Wait until the Weaver has read what was sent: it may be behind on a busy machine."""
        began_s = time.monotonic()
        ages_s = [0.0]
        while min(ages_s) < 2:
            _give_up(began_s)
            await asyncio.sleep(0.5)
            ages_s = await person.heartbeat_ages_s()

    def _read_record(self, herds: Herds) -> None:
        """Compare what was recorded with what was sent, and find the latest tick."""
        ticks_ns: list[int] = []
        telemetry = LostTelemetry()
        for epoch in read_epochs(run_folder(self._weaver.state, RUN)):
            for recorded in epoch.inputs():
                if isinstance(recorded.message, Tick):
                    ticks_ns.append(recorded.ts_recv_ns)
                elif isinstance(recorded.message, Telemetry):
                    began_ns = ticks_ns[0] if ticks_ns else recorded.ts_recv_ns
                    telemetry.take(recorded.message, (recorded.ts_recv_ns - began_ns) / 1e9)
        late_s = max((b - a) / 1e9 for a, b in itertools.pairwise(ticks_ns)) - 1.0
        self._note("latest tick, s", late_s, 0.2)
        lost = herds.get("sent") - telemetry.taken
        self._note("telemetry lost", lost, None if self._options.kill else 0)
        if lost:
            console.print(f"  {telemetry.describe(lost)}")


def _counts(herds: Herds) -> str:
    return ", ".join(f"{herds.get(name):,} {name.replace('_', ' ')}" for name in COUNTS)


async def _until(condition: Callable[[], bool]) -> None:
    began_s = time.monotonic()
    while not condition():
        _give_up(began_s)
        await asyncio.sleep(0.05)


def _give_up(began_s: float) -> None:
    if time.monotonic() - began_s > PATIENCE_S:
        sys.exit(f"gave up after {PATIENCE_S:g} s")


def main() -> None:
    """Play one run; the exit status is 1 if a limit is exceeded."""
    exceeded = [one for one in play(sys.argv[1:]) if not one.is_kept]
    console.print(f"{len(exceeded)} limits exceeded; load {os.getloadavg()[0]:.1f}")
    sys.exit(bool(exceeded))


def play(arguments: Sequence[str]) -> list[Measured]:
    """Play one run with the arguments of the command line, and return the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=10_000, help="how many [10000]")
    parser.add_argument("--within", type=float, default=5.0, help="they come within so many s [5]")
    parser.add_argument("--metrics", type=int, default=30, help="metrics a worker [30]")
    parser.add_argument("--kill", choices=("broker",), help="kill the server at the end")
    parser.add_argument("--press", action="store_true", help="press the kill switch all along")
    parser.add_argument("--busy", type=int, default=0, help="busy loops beside it [0]")
    parser.add_argument("--processes", type=int, default=2, help="processes of workers [2]")
    parser.add_argument("--settle", type=float, default=5.0, help="seconds before measuring [5]")
    parser.add_argument("--steady", type=float, default=20.0, help="seconds of measuring [20]")
    parser.add_argument("--quick", action="store_true", help="5 s, kill, press, limits x 3")
    options = parser.parse_args(arguments)
    if options.quick:
        options.settle, options.steady, options.within = 2.0, 5.0, 2.0
        options.kill, options.press = "broker", True
    load = os.getloadavg()[0]
    console.print(f"{options.workers:,} workers within {options.within:g} s; load {load:.1f}")
    loops = [subprocess.Popen([sys.executable, "-c", "while 1: pass"]) for _ in range(options.busy)]
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            trial = Trial(Path(folder), options)
            asyncio.run(trial.play())
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    return trial.results


if __name__ == "__main__":
    main()
