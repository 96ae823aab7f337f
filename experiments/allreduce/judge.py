"""Results of the arms: the time to a fixed loss, step times, and which requirements are met."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from experiments.allreduce.arm import TUNER, Played
from experiments.allreduce.quality import falling, first_at, half_interval
from experiments.allreduce.schedule import Phase, Schedule
from experiments.chaos.record import Row

GAIN = 1.3
STEADY_GAIN = 0.95
STEADY_SHARE = 0.9
"""Share of a constant schedule at which the best static mode sets the fixed loss, so that a
slightly slower arm reaches it too and its delay can be measured."""
SETTLED_SHARE = 0.4
"""Share of a constant schedule after which the tuner may switch at most once more."""
NEAR = 1.1
SETTLING_STEPS = 10
OWN_SHARE = 0.02


@dataclass(frozen=True)
class Phased:
    """One arm in one phase: the median step, s, over all seeds, and how many steps it is of."""

    arm: str
    phase: int
    name: str
    step_s: float
    steps: int
    mode: str


@dataclass(frozen=True)
class Cost:
    """What a step of a static mode takes: medians over all its steps and seeds.

    ``beside_s`` is what of it is not the wire, as the rank sees it that waits there the least:
    computing, compressing, the quorum, the commit. ``sent_bytes`` is what a rank sends.
    """

    mode: str
    beside_s: float
    compress_s: float
    sent_bytes: float


@dataclass(frozen=True)
class Check:
    """One requirement."""

    text: str
    holds: bool


def curve(played: Played) -> list[tuple[float, float]]:
    """Return the loss over time, without its noise."""
    marks = played.marks()
    losses = falling([loss for _, loss in marks])
    return [(at_s, loss) for (at_s, _), loss in zip(marks, losses, strict=True)]


def time_to(played: Played, loss: float) -> float:
    """Return when a loss was reached, between marks; inf if it was not."""
    times, losses = zip(*played.marks(), strict=True)
    return first_at(times, losses, loss)


def fixed_loss(trials: Sequence[Played], seed: int, by_s: float = math.inf) -> float:
    """Return the loss of a seed: what the best of its static modes has reached by a time."""
    static = [each for each in trials if each.seed == seed and each.arm != TUNER]
    return min(loss for each in static for at_s, loss in curve(each) if at_s <= by_s)


def gains(trials: Sequence[Played], by_s: float = math.inf) -> list[float]:
    """Return for each seed how many times faster the tuner is than its best static mode.

    To the loss that this one has reached by ``by_s``, or at the end.
    """
    found = []
    for seed in sorted({each.seed for each in trials}):
        loss = fixed_loss(trials, seed, by_s)
        ours = [time_to(each, loss) for each in trials if (each.seed, each.arm) == (seed, TUNER)]
        best = min(
            time_to(each, loss) for each in trials if each.seed == seed and each.arm != TUNER
        )
        found += [best / each if math.isfinite(each) else 0.0 for each in ours]
    return found


def settled_steps(played: Played, number: int, phase: Phase) -> list[Row]:
    """Return the steps that begin in a phase, its first ones left out."""
    if number >= len(played.began):
        return []
    began = [
        row
        for row in played.steps()
        if played.began[number] <= row["t"] - row["step_time"] < phase.end_s
    ]
    # A mode in which a phase has not so many steps has those after the first.
    return began[min(SETTLING_STEPS, len(began) // 2) :]


def progress(
    trials: Sequence[Played], arm: str, number: int, phase: Phase, quality: Mapping[str, float]
) -> float:
    """Return the progress a second in a phase, in steps of ``none``: the median over the seeds.

    A seed in which the tuner makes no step there counts as none; of a static mode it is left out.
    """
    each = []
    for played in trials:
        steps = settled_steps(played, number, phase) if played.arm == arm else []
        if steps:
            worth = sum(quality.get(row["mode"], 1.0) for row in steps)
            each.append(worth / sum(row["step_time"] for row in steps))
        elif (played.arm, arm) == (TUNER, TUNER):
            each.append(0.0)
    return statistics.median(each) if each else math.nan


def phased(trials: Sequence[Played], schedule: Schedule) -> list[Phased]:
    """Return the step time of each arm in each phase, its first steps there left out."""
    rows = []
    for arm in dict.fromkeys(each.arm for each in trials):
        for number, phase in enumerate(schedule):
            times: list[float] = []
            modes: list[str] = []
            for played in trials:
                if played.arm == arm:
                    settled = settled_steps(played, number, phase)
                    times += [row["step_time"] for row in settled]
                    modes += [row["mode"] for row in settled]
            step_s = statistics.median(times) if times else math.nan
            mode = statistics.mode(modes) if modes else ""
            rows.append(Phased(arm, number, phase.name, step_s, len(times), mode))
    return rows


def costs(trials: Sequence[Played]) -> list[Cost]:
    """Return what each static mode has cost beside the wire."""
    found = []
    for mode in dict.fromkeys(each.arm for each in trials if each.arm != TUNER):
        beside_s, compress_s, sent = [], [], []
        for played in trials:
            if played.arm != mode:
                continue
            for rows in played.by_step().values():
                longest_s = max(row["step_time"] for row in rows)
                beside_s.append(longest_s - min(row["wire"] for row in rows))
                compress_s.append(statistics.median(row["compress"] for row in rows))
                sent.append(statistics.median(row["bytes"] for row in rows))
        if sent:
            medians = map(statistics.median, (beside_s, compress_s, sent))
            found.append(Cost(mode, *medians))
    return found


def switches(played: Played, settled_s: float) -> int:
    """Return how often the mode has changed after a time."""
    modes = [row["mode"] for row in played.steps() if row["t"] >= settled_s]
    return sum(a != b for a, b in pairwise(modes))


def own_share(trials: Sequence[Played]) -> float:
    """Return the extra share of a core that the control plane uses with the tuner.

    In both arms it handles telemetry and quorums; only with the tuner it computes and probes.
    """
    ours = [each.control_share() for each in trials if each.arm == TUNER]
    without = [each.control_share() for each in trials if each.arm != TUNER]
    return statistics.fmean(ours) - statistics.fmean(without)


def checks_of_changing(
    trials: Sequence[Played], schedule: Schedule, quality: Mapping[str, float]
) -> list[Check]:
    """Return the requirements for a changing bandwidth."""
    if not any(each.arm == TUNER for each in trials):
        return []
    found = [_gain_check(gains(trials), GAIN)]
    static = dict.fromkeys(each.arm for each in trials if each.arm != TUNER)
    step_s = {(row.arm, row.phase): row.step_s for row in phased(trials, schedule)}
    for number, phase in enumerate(schedule):
        of = {arm: progress(trials, arm, number, phase, quality) for arm in (*static, TUNER)}
        of = {arm: made for arm, made in of.items() if not math.isnan(made)}
        ours = of.pop(TUNER, 0.0)
        if not of:  # no step of a static mode begins there
            continue
        best = max(of, key=of.__getitem__)
        shortest = min(of, key=lambda arm: step_s[arm, number])
        here = f"phase {number + 1}, {phase.name}"
        text = (
            f"{here}: {ours / of[best]:.2f} of the progress per second "
            f"in the best static mode ({best}), need {1 / NEAR:.2f}"
        )
        found.append(Check(text, ours * NEAR >= of[best]))
        times = step_s[TUNER, number] / step_s[best, number]
        text = (
            f"{here}: a step takes {times:.2f} times as long as in that mode, need at most {NEAR:g}"
            f" (the shortest, {shortest}: {step_s[TUNER, number] / step_s[shortest, number]:.2f})"
        )
        found.append(Check(text, times <= NEAR))
    return [*found, _own_cost(trials), _failures(trials)]


def checks_of_constant(trials: Sequence[Played], schedule: Schedule) -> list[Check]:
    """Return the requirements for a constant bandwidth."""
    (phase,) = schedule
    settled_s = SETTLED_SHARE * phase.end_s
    ours = [each for each in trials if each.arm == TUNER]
    if not ours:
        return []
    most = max(switches(each, settled_s) for each in ours)
    found = [
        _gain_check(gains(trials, STEADY_SHARE * phase.end_s), STEADY_GAIN),
        Check(f"{most} switches after {settled_s:g} s, need at most 1", most <= 1),
        _own_cost(trials),
        _failures(trials),
    ]
    return [Check(f"{phase.name}: {each.text}", each.holds) for each in found]


def _gain_check(found: Sequence[float], least: float) -> Check:
    mean, half = statistics.fmean(found), half_interval(found)
    text = (
        f"time to the fixed loss: {mean:.2f} ± {half:.2f} times as fast as the best static mode "
        f"over {len(found)} seeds, need {least:g}"
    )
    return Check(text, mean >= least)


def _own_cost(trials: Sequence[Played]) -> Check:
    share = own_share(trials)
    text = f"the tuner uses {share:.1%} of a core, probes included, need at most {OWN_SHARE:.0%}"
    return Check(text, share <= OWN_SHARE)


def _failures(trials: Sequence[Played]) -> Check:
    failed = sum(each.failed_steps() for each in trials if each.arm == TUNER)
    return Check(f"{failed} failed steps of the tuner's arms, need 0", failed == 0)
