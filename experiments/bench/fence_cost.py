"""What the fence costs a step of three torchft groups, and what all of torchLoom costs it."""

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median

from fence_trainer import ARMS
from figure import Figure
from scene import Actor, Arrivals, actor, open_bus, running_broker, write_join_file

from torchloom_core.live.transport.ports import lasting_port

GROUPS = ("a", "b", "c")
QUIET = {"RUST_LOG": "error", "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore"}
PAUSE_S = 0.045
"""Pretended work; with its own part and the others' a step takes about 70 ms."""

_DRAWS = 2000


async def measure(repeats: int, *, tiny: bool) -> list[Figure]:
    """Start three trainers per repeat; they take turns once the telemetry of all arrives here."""
    turns, steps = (1, 5) if tiny else (8, 20)
    arrivals = Arrivals()
    took: dict[str, list[float]] = {arm: [] for arm in ARMS}
    async with running_broker() as (broker, folder), open_bus(broker, arrivals.receive):
        join = write_join_file(broker, folder)
        for repeat in range(repeats):
            groups = [f"{group}{repeat}" for group in GROUPS]  # no place is taken twice
            workers = {f"{group}-0" for group in groups}
            attached = arrivals.until(partial(workers.issubset, arrivals.workers))
            rows = await _one(str(join), groups, turns, steps, attached)
            for arm in ARMS:
                took[arm] += rows[arm]
    fence = "a step with the vote / without it, 3 torchft groups"
    threadlet = "a step with all of torchLoom, nothing changing / torchft alone"
    return [
        of_steps("fence", fence, 1.05, took, "fenced", "unfenced"),
        of_steps("threadlet", threadlet, 1.02, took, "fenced", "alone"),
    ]


async def _one(
    join: str, groups: list[str], turns: int, steps: int, attached: Awaitable[None]
) -> dict[str, list[float]]:
    async with AsyncExitStack() as stack:
        lighthouse = await stack.enter_async_context(_lighthouse())
        arguments = ("fence_trainer.py", lighthouse, turns, steps, PAUSE_S)
        trainers: list[Actor] = []
        for group in groups:
            own = {"TORCHLOOM_JOIN": join, "TORCHLOOM_GROUP": group, **QUIET}
            trainers.append(await stack.enter_async_context(actor(*arguments, **own)))
        await attached
        for trainer in trainers:
            trainer.go()
        answers = [await trainer.hear() for trainer in trainers]
        for trainer in trainers:
            trainer.go()
        for trainer in trainers:
            await trainer.ended()
    # In lockstep, each waits for the slowest: one group's times are the run's.
    return answers[0]


@asynccontextmanager
async def _lighthouse() -> AsyncIterator[str]:
    """Yield the URL of torchft's own, in a process of its own."""
    port = lasting_port("127.0.0.1")
    program = str(Path(sys.executable).with_name("torchft_lighthouse"))
    options = ["--bind", f"[::]:{port}", "--min_replicas", str(len(GROUPS))]
    process = await asyncio.create_subprocess_exec(program, *options, env=os.environ | QUIET)
    try:
        yield f"http://localhost:{port}"
    finally:
        process.kill()
        await process.wait()


def of_steps(
    name: str,
    what: str,
    limit: float,
    took: dict[str, list[float]],
    one: str,
    other: str,
    **more: float,
) -> Figure:
    """Return the figure of one arm's steps over another's, of the seconds that they took."""
    ratios = [a / b for a, b in zip(took[one], took[other], strict=True)]
    numbers = {f"{arm}_step_ms": 1e3 * median(seconds) for arm, seconds in took.items()} | more
    numbers["ratio_from_95"], numbers["ratio_to_95"] = _interval(ratios)
    return Figure(name, what, limit, "at most", ratios, numbers)


def _interval(ratios: list[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the median."""
    rng = random.Random(0)
    medians = sorted(median(rng.choices(ratios, k=len(ratios))) for _ in range(_DRAWS))
    return medians[round(0.025 * _DRAWS)], medians[round(0.975 * _DRAWS)]
