"""A run whose step time depends on its network: all ranks compute, then reduce their gradients.

A step takes the slowest rank's compute, the compression, and what of the wire is not hidden:

    step = max(compute) + compress(mode) + bytes(mode) / (use(mode) bandwidth) + hops latency

where the bandwidth is that of the slowest link, at each moment what it then carries, and a mode may
make use of a part of it only.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from torchloom_core.plugin.arrays import Floats
from torchloom_core.simulate.links import Bottleneck

_DRAWN = 1024
"""Steps whose noise is drawn at once."""

_POINTS = 300


@dataclass(frozen=True, kw_only=True)
class Mode:
    """What a mode of compression does to a step.

    Attributes
    ----------
    sent_bytes : float
        What each rank sends, and receives.
    quality : float
        Progress of one step, in steps of ``none``.
    link_use : float
        Of the slowest link's bandwidth what it makes use of.
    """

    sent_bytes: float
    compress_s: float
    quality: float
    link_use: float = 1.0

    @property
    def link_bytes(self) -> float:
        """For how many bytes the link is busy while it sends its own."""
        return self.sent_bytes / self.link_use


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What the ranks do in a step.

    Attributes
    ----------
    ranks : int
        How many there are.
    gradient_bytes : int
        What a step's reductions come to before compression.
    compute_s : float
        Own time of a rank.
    overlap : float
        Share of the bytes that go over the wire behind compute, as far as there is time, and of
        the latency.
    latency_s : float
        Of all hops together.
    noise : float
        By how much times vary from step to step, relative: lognormal, with mean 1.
    """

    ranks: int
    gradient_bytes: int
    compute_s: float
    overlap: float
    latency_s: float
    noise: float
    modes: Mapping[str, Mode]


class Step(NamedTuple):
    """One step; times are seconds since the start of the run.

    Attributes
    ----------
    number : int
        From 1.
    own_s : (ranks,) float64
        Compute of each rank.
    hidden_s, exposed_s : float
        Time on the wire behind compute, and after compute and compression.
    progress : float
        Of the run by its end.
    luck : float
        Noise of what is measured of the model itself, around 1.
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
    """Steps one after the other in one mode, and when they begin."""

    begin_s: float
    mode: str


class AllreduceRun:
    """Steps, one after the other; what is drawn for a step does not depend on its mode.

    Attributes
    ----------
    workload : Workload
        As given.
    now_s : float
        When the last step that was finished ended.
    steps : int
        How many were.
    progress : float
        What they are worth, in steps of ``none``.
    in_mode_s : dict of str to float
        Time spent in each mode.
    stretches : list of Stretch
        When the mode changed, the start included.
    curve : list of (float, float)
        Time and progress, some hundreds of them a pass of the recording.
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
        """Return the step that begins now, in this mode; ask again in another as you like.

        ``others_bytes`` is what the slowest link carries meanwhile besides, for somebody else.
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
        """Take the step that began now as done."""
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
        """Return the step that begins now in the mode in which it makes most progress a second."""
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
