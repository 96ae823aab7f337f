"""A run whose step time depends on its network: all ranks compute, then reduce their gradients.

A step takes the slowest rank's compute, the compression, and the transfer beyond the overlap:

    step = max(compute) + compress(mode) + bytes(mode) / (use(mode) bandwidth) + hops latency

where the bandwidth is that of the slowest link at each time, of which a mode may use only a part.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from torchloom_core.interface.arrays import Floats
from torchloom_core.lab.simulate.links import Bottleneck

_DRAWN = 1024
"""Number of steps whose noise is drawn at once."""

_POINTS = 300


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A compression mode: its bytes, time and progress per step.

    Each rank sends and receives ``sent_bytes``. ``quality`` is the progress of one step, in steps
    of the mode ``none``; ``link_use`` the share of the slowest link's bandwidth that it uses.
    """

    sent_bytes: float
    compress_s: float
    quality: float
    link_use: float = 1.0

    @property
    def link_bytes(self) -> float:
        """Bytes that the link could carry in the time of the transfer."""
        return self.sent_bytes / self.link_use


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The work of the ranks in a step.

    ``gradient_bytes`` are those before compression; ``latency_s`` that of all hops together. At
    most ``overlap`` of the bytes, and of the latency, overlaps with compute. ``noise`` is the
    relative variation of times from step to step: lognormal, with mean 1.
    """

    ranks: int
    gradient_bytes: int
    compute_s: float
    overlap: float
    latency_s: float
    noise: float
    modes: Mapping[str, Mode]


class Step(NamedTuple):
    """One step, numbered from 1; times are seconds since the start of the run.

    ``own_s``, ``(ranks,)``, is the compute time; ``hidden_s`` and ``exposed_s`` the transfer during
    compute, and after compute and compression. ``progress`` is the run's at the end of the step,
    and ``luck`` the noise of the loss, around 1.
    """

    number: int
    mode: str
    begin_s: float
    end_s: float
    own_s: Floats
    compress_s: float
    hidden_s: float
    exposed_s: float
    progress: float
    luck: float


class Stretch(NamedTuple):
    """Consecutive steps in one mode: their start and mode."""

    begin_s: float
    mode: str


class AllreduceRun:
    """A sequence of steps; the noise of a step does not depend on its mode.

    ``now_s``, ``steps`` and ``progress``, in steps of the mode ``none``, are those of the finished
    steps. ``stretches`` has start and mode of each stretch in one mode, ``curve`` time and progress
    at some hundreds of points per pass of the recording.
    """

    def __init__(self, workload: Workload, wire: Bottleneck, random: np.random.Generator) -> None:
        self.workload, self._wire = workload, wire
        self._noise = _noise(workload.noise, workload.ranks, random)
        self._drawn = next(self._noise)
        self.now_s = self.progress = 0.0
        self.steps = 0
        self.in_mode_s = dict.fromkeys(workload.modes, 0.0)
        self.stretches: list[Stretch] = []
        self.curve: list[tuple[float, float]] = [(0.0, 0.0)]
        self._every_s = wire.span_s / _POINTS

    def step(self, mode: str, others_bytes: float = 0.0) -> Step:
        """Return the step that begins now in this mode, without finishing it.

        ``others_bytes`` is other traffic that the slowest link carries meanwhile.
        """
        load, wire, chosen = self.workload, self._wire, self.workload.modes[mode]
        own, compress, sent, luck = self._drawn
        own_s = load.compute_s * own
        computed_s = self.now_s + float(own_s.max())
        behind = wire.carried(computed_s)
        needed = chosen.link_bytes * sent + others_bytes
        hidden = min(load.overlap * needed, behind - wire.carried(self.now_s))
        compress_s = chosen.compress_s * compress
        ready_s = computed_s + compress_s
        sent_s = max(ready_s, wire.when(wire.carried(ready_s) + needed - hidden))
        end_s = sent_s + (1.0 - load.overlap) * load.latency_s
        return Step(
            number=self.steps + 1,
            mode=mode,
            begin_s=self.now_s,
            end_s=end_s,
            own_s=own_s,
            compress_s=compress_s,
            hidden_s=computed_s - wire.when(behind - hidden) if hidden > 0 else 0.0,
            exposed_s=end_s - ready_s,
            progress=self.progress + chosen.quality,
            luck=luck,
        )

    def finish(self, step: Step) -> None:
        """Finish the step that began now."""
        if not self.stretches or self.stretches[-1].mode != step.mode:
            self.stretches.append(Stretch(step.begin_s, step.mode))
        self.now_s = step.end_s
        self.steps = step.number
        self.progress = step.progress
        self.in_mode_s[step.mode] += step.end_s - step.begin_s
        self._drawn = next(self._noise)
        if step.end_s >= self.curve[-1][0] + self._every_s:
            self.curve.append((step.end_s, step.progress))

    def best(self) -> Step:
        """Return the step that begins now in the mode with the most progress per second."""
        return max(map(self.step, self.workload.modes), key=self._worth)

    def _worth(self, step: Step) -> float:
        return self.workload.modes[step.mode].quality / (step.end_s - step.begin_s)


def _noise(
    spread: float, ranks: int, random: np.random.Generator
) -> Iterator[tuple[Floats, float, float, float]]:
    """Yield for each step the noise of every rank's compute, of compression, wire and model."""
    while True:
        normal = random.standard_normal((_DRAWN, ranks + 3))
        drawn = np.exp(spread * normal - spread**2 / 2)
        for row in drawn:
            compress, sent, luck = row[ranks:].tolist()
            yield row[:ranks], compress, sent, luck
