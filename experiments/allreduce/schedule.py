"""The rate of every rank's data link over time, determined before the run by a seed."""

import argparse
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torchloom_core.demos.bandwidth.namespaces import Lab, Rate

CHANGING = (None, 1000.0, 200.0, 50.0, 1000.0)
SHARES = (2.0, 1.0, 2.0, 2.0, 1.0)
"""Length of each phase, as a share of ``--phase-s``: no mode is good throughout."""

KINDS = ("changing", "sinus", "failing", "asymmetric")
_MOST_S = 86_400.0
SLICE_S = 2.0
"""How often a continuously changing rate is updated."""


@dataclass(frozen=True)
class Phase:
    """A time with constant rates.

    Attributes
    ----------
    start_s, end_s : float
        Since the first step.
    rates : tuple of Rate
        One a rank.
    """

    start_s: float
    end_s: float
    rates: tuple[Rate, ...]

    @property
    def name(self) -> str:
        """The slowest rate, in words."""
        least = min((least_mbit(rate) for rate in self.rates), default=math.inf)
        return "unshaped" if math.isinf(least) else f"{least:g} Mbit/s"


Schedule = tuple[Phase, ...]


def steps(levels: Sequence[float | None], lasts_s: Sequence[float], ranks: int) -> Schedule:
    """Return one level after the other, the same for all ranks, with the given lengths."""
    spans = zip(lasts_s, levels, strict=True)
    return phases((span_s, (Rate.both(mbit),) * ranks) for span_s, mbit in spans)


def sinus(
    low: float, high: float, period_s: float, seconds: float, ranks: int, seed: int
) -> Schedule:
    """Return rates that oscillate between two values, with another offset for each rank."""
    rng = random.Random(seed)
    shifts = [rng.uniform(0, 2 * math.pi) for _ in range(ranks)]
    middle, swing = math.log(low * high) / 2, math.log(high / low) / 2

    def at(now_s: float) -> tuple[Rate, ...]:
        turn = 2 * math.pi * now_s / period_s
        return tuple(Rate.both(math.exp(middle + swing * math.sin(turn + s))) for s in shifts)

    return _sliced(at, seconds)


def failing(mbit: float, least: float, seconds: float, ranks: int, seed: int) -> Schedule:
    """Return a link of one rank that degrades irregularly, while the others stay constant."""
    rng = random.Random(seed)
    victim = rng.randrange(ranks)

    def at(now_s: float) -> tuple[Rate, ...]:
        left = mbit * (least / mbit) ** (now_s / seconds) * rng.uniform(0.7, 1.0)
        return tuple(Rate.both(left if rank == victim else mbit) for rank in range(ranks))

    return _sliced(at, seconds)


def asymmetric(mbit: float, seconds: float, ranks: int, seed: int) -> Schedule:
    """Return ranks that differ, and carry more to them than from them."""
    rng = random.Random(seed)
    ups = [mbit * rng.uniform(0.2, 1.0) for _ in range(ranks)]
    return phases([(seconds, tuple(Rate(up, mbit) for up in ups))])


def play(schedule: Schedule, lab: Lab, begun_s: float, *, alive: Callable[[], bool]) -> list[float]:
    """Shape the lab's links by a schedule; return when each phase began, since ``begun_s``.

    Parameters
    ----------
    begun_s : float
        By ``time.monotonic``.
    alive : callable
        Whether to continue; called a few times a second.
    """
    began = []
    for phase in schedule:
        while (left_s := begun_s + phase.start_s - time.monotonic()) > 0 and alive():
            time.sleep(min(left_s, 0.2))
        if not alive():
            break
        lab.set_rates(phase.rates)
        began.append(time.monotonic() - begun_s)
    while (left_s := begun_s + schedule[-1].end_s - time.monotonic()) > 0 and alive():
        time.sleep(min(left_s, 0.2))
    return began


def least_mbit(rate: Rate) -> float:
    """Return the rate of a link in its slower direction; inf if it is not shaped."""
    return min(math.inf if each is None else each for each in (rate.up, rate.down))


def _sliced(at: Callable[[float], tuple[Rate, ...]], seconds: float) -> Schedule:
    count = max(1, round(seconds / SLICE_S))
    return phases((seconds / count, at(seconds * n / count)) for n in range(count))


def phases(spans: Iterable[tuple[float, tuple[Rate, ...]]]) -> Schedule:
    """Return the phases of spans that follow each other: how long each is, and its rates."""
    found, now = [], 0.0
    for lasts_s, rates in spans:
        found.append(Phase(now, now + lasts_s, rates))
        now += lasts_s
    return tuple(found)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a schedule."""
    parser.add_argument("--schedule", choices=KINDS, default="changing")
    parser.add_argument("--phase-s", type=_seconds, default=30.0)
    parser.add_argument("--ranks", type=at_least(2), default=4)
    parser.add_argument("--seed", type=int, default=1, help="of the schedule")


def at_least(least: int) -> Callable[[str], int]:
    """Return a parser of an integer option that refuses values below ``least``."""

    def whole(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"need at least {least}, was {number}")
        return number

    return whole


def _seconds(text: str) -> float:
    number = float(text)
    if not 0.0 < number <= _MOST_S:
        raise argparse.ArgumentTypeError(f"need more than 0 and at most {_MOST_S:g}, was {text}")
    return number


def of_options(args: argparse.Namespace) -> Schedule:
    """Return the requested schedule, five phases long."""
    ranks, seed, seconds = args.ranks, args.seed, args.phase_s * len(CHANGING)
    if args.schedule == "sinus":
        return sinus(50, 1000, seconds / 2, seconds, ranks, seed)
    if args.schedule == "failing":
        return failing(1000, 20, seconds, ranks, seed)
    if args.schedule == "asymmetric":
        return asymmetric(500, seconds, ranks, seed)
    return steps(CHANGING, [args.phase_s * share for share in SHARES], ranks)
