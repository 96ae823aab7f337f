"""Pause and resume a live torchft run again and again, and count what goes wrong.

    python experiments/pause/run.py [--pauses 200] [--only ddp] [--out build/pause]

Two replica groups, DDP and then DiLoCo, with torchft's lighthouse and a Weaver, each a process of
its own. Pauses come at random moments and last for random times. The exit status is 1 if a group
was lost, stood still or failed at a step.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from torchloom_core.transport import ControlClient

HERE = Path(__file__).parent
GROUPS = ("g0", "g1")
STEP_MS = {"ddp": 60.0, "diloco": 20.0}
DEADLOCK_S = 10.0
"""A run that does not go on for so long after a pause stands still."""

READY_S = 60.0


@dataclass(frozen=True)
class Pause:
    """One pause: what came of it, and when it was asked for, over, and all groups at work again."""

    result: str
    detail: str
    asked_s: float
    over_s: float
    again_s: float | None


@dataclass(frozen=True)
class Result:
    """What came of all pauses of one algorithm.

    Attributes
    ----------
    held, undone : int
        Pauses that were in force until they were resumed, and splits that were undone.
    deadlocks : int
        Pauses after which a group had no step within 10 s.
    lost : int
        Groups whose process ended, or that trained without the other.
    failed_steps : int
        Steps, of either group, that were not committed.
    longest_stall_s : float
        Longest time between two steps of a group, without the time that a pause was in force.
    split_s : tuple of float
        Median and longest time from asking for a pause that was undone to all at work again.
    resume_s : tuple of float
        The same from asking to resume.
    """

    algorithm: str
    pauses: int
    held: int
    undone: int
    deadlocks: int
    lost: int
    failed_steps: int
    steps: int
    longest_stall_s: float
    split_s: tuple[float, float]
    resume_s: tuple[float, float]
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost."""
        return not (self.deadlocks or self.lost or self.failed_steps)


class Group:
    """One replica group in a process of its own."""

    def __init__(self, name: str, folder: Path, algorithm: str, lighthouse: str) -> None:
        self.log = folder / f"{name}.jsonl"
        self._rows: list[dict[str, Any]] = []
        self._read = 0
        command = [sys.executable, str(HERE / "trainer.py"), algorithm]
        command += ["--lighthouse", lighthouse, "--log", str(self.log)]
        command += ["--step-ms", str(STEP_MS[algorithm])]
        own = {
            "TORCHLOOM_JOIN": str(folder / "state" / "join.json"),
            "TORCHLOOM_GROUP": name,
            "TORCHLOOM_NODE": f"node-{name}",
            "OMP_NUM_THREADS": "1",
            "RUST_LOG": "error",
        }
        with (folder / f"{name}.err").open("w") as errors:
            self.process = subprocess.Popen(command, env=os.environ | own, stderr=errors)

    def rows(self) -> list[dict[str, Any]]:
        """Return the steps so far."""
        if self.log.exists():
            with self.log.open("rb") as log:
                log.seek(self._read)
                new = log.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read += len(whole)
            self._rows += [json.loads(line) for line in whole.splitlines()]
        return self._rows


class Asker:
    """A person who asks for pauses, and hears what comes of them."""

    def __init__(self, client: ControlClient) -> None:
        self._client = client
        self._heard: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()

    async def listen(self) -> None:
        """Begin to hear what the Weaver tells."""
        await self._client.listen(
            lambda kind, data: self._heard.put_nowait((kind, json.loads(data)))
        )

    async def ask(self, kind: str) -> dict[str, Any]:
        """Ask for an action on the run, and return its outcome."""
        body = json.dumps({"action": {"kind": kind}}).encode()
        answer = json.loads(await self._client.ask("propose", body, 10.0))
        if not answer["ok"]:
            return {"result": "denied", "detail": answer["text"]}
        async with asyncio.timeout(READY_S):
            while True:
                heard, told = await self._heard.get()
                if heard == "outcome" and told["action"]["kind"] == kind:
                    return told


async def pause_again_and_again(
    asker: Asker, groups: list[Group], pauses: int, seed: int
) -> list[Pause]:
    """Pause and resume ``pauses`` times, at random moments; stop at a deadlock."""
    draw = random.Random(seed)
    done: list[Pause] = []
    for _ in range(pauses):
        await asyncio.sleep(draw.uniform(0.1, 0.6))
        asked_s = time.time()
        outcome = await asker.ask("pause")
        over_s = time.time()
        if outcome["result"] == "done":
            await asyncio.sleep(draw.uniform(0.2, 2.5))
            over_s = time.time()
            await asker.ask("resume")
        again_s = await all_at_work(groups, over_s)
        done.append(Pause(outcome["result"], outcome["detail"], asked_s, over_s, again_s))
        if again_s is None:
            break
    return done


async def all_at_work(groups: list[Group], after_s: float) -> float | None:
    """Return when every group had ended two steps after ``after_s``, None if one stands still."""
    end = time.monotonic() + DEADLOCK_S + READY_S
    began_s = time.time()
    while time.monotonic() < end:
        rows = [[row["t"] for row in group.rows()[-500:] if row["t"] > after_s] for group in groups]
        if all(len(times) >= 2 for times in rows):
            again_s = max(times[0] for times in rows)
            return again_s if again_s - began_s < DEADLOCK_S else None
        await asyncio.sleep(0.02)
    return None


def stall_s(rows: list[dict[str, Any]], pauses: list[Pause]) -> float:
    """Return the longest time between two steps, without that of pauses that were in force."""
    held = [(p.asked_s, p.over_s) for p in pauses if p.result == "done"]
    longest = 0.0
    for before, after in pairwise(rows):
        paused = sum(
            max(0.0, min(after["t"], over) - max(before["t"], asked)) for asked, over in held
        )
        longest = max(longest, after["t"] - before["t"] - paused)
    return longest


@contextmanager
def processes(folder: Path, algorithm: str) -> Iterator[list[Group]]:
    """Start lighthouse, Weaver and groups, and end them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "torchloom.toml").write_text("[weaver]\nstate_dir = 'state'\n")
    lighthouse = [str(Path(sys.executable).with_name("torchft_lighthouse"))]
    lighthouse += ["--bind", f"[::]:{port}", "--min_replicas", "1", "--join_timeout_ms", "60000"]
    lighthouse += ["--heartbeat_timeout_ms", "1000", "--quorum_tick_ms", "100"]
    weaver = [sys.executable, "-m", "torchloom_core.cli", "weaver"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for name, command in (("lighthouse", lighthouse), ("weaver", weaver)):
            with (folder / f"{name}.log").open("w") as log:
                environment = os.environ | {"RUST_LOG": "error"}
                started.append(
                    subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
                )
        wait_for(lambda: "is ready" in (folder / "weaver.log").read_text())
        groups = [Group(n, folder, algorithm, f"http://localhost:{port}") for n in GROUPS]
        started += [group.process for group in groups]
        wait_for(
            lambda: all(g.rows() and g.rows()[-1]["participants"] == len(GROUPS) for g in groups)
        )
        yield groups
    finally:
        for process in reversed(started):
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and what it started."""
    children = []
    with suppress(psutil.Error):
        children = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    for child in children:
        with suppress(psutil.Error):
            child.kill()


def wait_for(what: Callable[[], bool]) -> None:
    """Wait until it is true."""
    end_s = time.monotonic() + READY_S
    while not what():
        if time.monotonic() > end_s:
            raise TimeoutError(f"not ready after {READY_S:g} s; see the logs")
        time.sleep(0.1)


async def drive(folder: Path, groups: list[Group], pauses: int, seed: int) -> list[Pause]:
    """Connect as a person does, and pause."""
    url = json.loads((folder / "state" / "broker" / "broker.json").read_text())["url"]
    creds = folder / "state" / "broker" / "keys" / "operator.creds"
    client = await ControlClient.connect(url, "run", creds)
    try:
        asker = Asker(client)
        await asker.listen()
        return await pause_again_and_again(asker, groups, pauses, seed)
    finally:
        await client.close()


def try_out(folder: Path, algorithm: str, pauses: int, seed: int) -> Result:
    """Pause a run of one algorithm, and count."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.monotonic()
    with processes(folder, algorithm) as groups:
        first = {id(group): len(group.rows()) for group in groups}
        done = asyncio.run(drive(folder, groups, pauses, seed))
        rows = {id(group): group.rows()[first[id(group)] :] for group in groups}
        ended = sum(group.process.poll() is not None for group in groups)
    (folder / "pauses.json").write_text(json.dumps([asdict(pause) for pause in done], indent=1))
    alone = sum(any(row["participants"] != len(GROUPS) for row in of) for of in rows.values())
    splits = [p.again_s - p.asked_s for p in done if p.result == "undone" and p.again_s]
    resumes = [p.again_s - p.over_s for p in done if p.result == "done" and p.again_s]
    return Result(
        algorithm=algorithm,
        pauses=len(done),
        held=sum(pause.result == "done" for pause in done),
        undone=sum(pause.result == "undone" for pause in done),
        deadlocks=sum(pause.again_s is None for pause in done),
        lost=max(ended, alone),
        failed_steps=sum(not row["committed"] for of in rows.values() for row in of),
        steps=sum(len(of) for of in rows.values()),
        longest_stall_s=round(max(stall_s(of, done) for of in rows.values()), 2),
        split_s=middle_and_longest(splits),
        resume_s=middle_and_longest(resumes),
        seconds=round(time.monotonic() - began, 1),
    )


def middle_and_longest(seconds: list[float]) -> tuple[float, float]:
    """Return median and maximum, 0 where there is nothing."""
    if not seconds:
        return 0.0, 0.0
    return round(statistics.median(seconds), 2), round(max(seconds), 2)


def main() -> int:
    """Try each algorithm, print and keep what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pauses", type=int, default=200)
    parser.add_argument("--only", choices=sorted(STEP_MS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build/pause"))
    options = parser.parse_args()
    results = []
    for algorithm in [options.only] if options.only else STEP_MS:
        folder = options.out.absolute() / algorithm
        result = try_out(folder, algorithm, options.pauses, options.seed)
        (folder / "result.json").write_text(json.dumps(asdict(result), indent=1) + "\n")
        print(json.dumps(asdict(result)), flush=True)
        results.append(result)
    return 0 if all(result.is_good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
