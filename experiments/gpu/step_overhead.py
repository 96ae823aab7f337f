"""What an attached step costs: bare and attached blocks in turns, also compiled and as a graph.

``python -m experiments.gpu.step_overhead cuda``; ``run.py`` calls this.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters

from experiments.bench.figure import Figure
from experiments.gpu.attached import attached
from experiments.gpu.section import Device, Measurement, Synchronisations, main, report
from experiments.gpu.training import Training
from torchloom_threadlet.loom import Loom

_STEPS_MS = (5, 20, 100)
_JUDGED_MS = 20
_LIMIT, _LIMIT_OF_5_MS = 1.01, 1.04
_BLOCK_S, _PAIRS = 0.4, 10
_WATCHED = 50
_CAPTURES, _LINGER_S = 20, 0.15
"""A capture takes longer than samples wait for the link's thread."""


def measure(device: Device) -> Iterator[Measurement]:
    """Measure each kind of step."""
    with attached() as (loom, _):
        for wanted_ms in _STEPS_MS if device.is_gpu else (_STEPS_MS[0],):
            yield partial(plain, wanted_ms, loom, device)
        yield partial(compiled, loom, device)
        if device.is_gpu:
            yield partial(graphed, loom, device)
            yield partial(captures, loom, device)


def plain(wanted_ms: int, loom: Loom, device: Device) -> Figure:
    """Compare steps of about ``wanted_ms``."""
    bare, ours = Training(device), Training(device)
    step_s = bare.last(wanted_ms / 1e3, device)
    ours.parts = bare.parts
    loom.measure(ours.model)
    limit = _LIMIT if wanted_ms >= _JUDGED_MS else _LIMIT_OF_5_MS
    return compare(f"step_{wanted_ms}ms", bare.step, ours.step, loom, device, step_s, limit)


def compare(
    name: str,
    bare: Callable[[], Tensor],
    ours: Callable[[], Tensor],
    loom: Loom,
    device: Device,
    step_s: float,
    limit: float,
) -> Figure:
    """Return the ratio of attached steps to bare ones, block by block."""

    def attached_step() -> None:
        loom.step(loss=ours())

    pairs, block_s = device.sized(_PAIRS, 2), _BLOCK_S if device.is_gpu else 0.02
    steps = max(2, round(block_s / step_s))
    rows = []
    for number in range(pairs):
        order = (bare, attached_step) if number % 2 else (attached_step, bare)
        took = {run: device.seconds(run, steps) for run in order}
        rows.append((took[bare], took[attached_step]))
    synchronisations = Synchronisations(device)
    synchronisations.check()
    for _ in range(device.sized(_WATCHED, 5)):
        loss = ours()
        with synchronisations.watched():
            loom.step(loss=loss)
    return Figure(
        name,
        f"an attached step / the bare one, {name.replace('_', ' ')}",
        limit,
        "at most",
        [ours_s / bare_s for bare_s, ours_s in rows],
        {
            "bare_ms": 1e3 * median(row[0] for row in rows),
            "attached_ms": 1e3 * median(row[1] for row in rows),
            "synchronisations": synchronisations.count,
        },
    )


def compiled(loom: Loom, device: Device) -> Figure:
    """Compare compiled steps, and count the graph's breaks with ``loom.step`` beside it."""
    backend: Any = "inductor" if device.is_gpu else "eager"
    both = Training(device), Training(device)
    loom.measure(both[1].model)
    for training in both:
        training.forward = torch.compile(training.forward, backend=backend)
    step_s = both[0].last(_JUDGED_MS / 1e3 if device.is_gpu else 0.005, device)
    both[1].parts = both[0].parts
    both[1].step()
    counters.clear()
    steps = both[0].step, both[1].step
    figure = compare("step_compiled", *steps, loom, device, step_s, _LIMIT)
    again = sum(counters["stats"].values()) + sum(counters["graph_break"].values())
    return Figure(
        figure.name,
        figure.what,
        figure.limit,
        figure.bound,
        figure.ratios,
        {**figure.numbers, "breaks_and_recompilations": again},
    )


def graphed(loom: Loom, device: Device) -> Figure:
    """Compare replays of a CUDA graph of the whole step."""
    both = Training(device), Training(device)
    loom.measure(both[1].model)
    step_s = both[0].last(_JUDGED_MS / 1e3, device)
    both[1].parts = both[0].parts
    replays = [replay_of(training) for training in both]
    return compare("step_graph", *replays, loom, device, step_s, _LIMIT)


def replay_of(training: Training, *, linger_s: float = 0.0) -> Callable[[], Tensor]:
    """Capture a step, which takes at least ``linger_s``; return a function that replays it."""
    with beside_the_default_stream():
        for _ in range(3):
            training.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = training.step()
        time.sleep(linger_s)

    def replay() -> Tensor:
        graph.replay()
        return loss

    return replay


@contextmanager
def beside_the_default_stream() -> Iterator[None]:
    """Warm up what is captured next, as torch asks for."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def captures(loom: Loom, device: Device) -> Figure:
    """Return how many captures of a graph fail while the loom's threads read what was reported."""
    failed, why = 0, ""
    training = Training(device)
    loom.measure(training.model)
    for _ in range(_CAPTURES):
        for _ in range(5):
            loom.step(loss=training.step())  # read by other threads during the capture
        try:
            replay_of(training, linger_s=_LINGER_S)()
        except RuntimeError as error:
            failed, why = failed + 1, str(error).splitlines()[0]
            torch.cuda.synchronize()
    if why:
        report(note=f"a capture failed: {why}")
    what = f"captures of a graph that fail, of {_CAPTURES}, right after loom.step"
    return Figure("captures", what, 0, "at most", [float(failed)])


if __name__ == "__main__":
    main(measure)
