"""Vary the number of spares: the same job and nodes, with a growing number of extra nodes."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from torchloom_core.floor.errors import ConfigError
from torchloom_core.floor.suggest import nearest
from torchloom_core.lab.evaluate.arm import MEMBERSHIP_POLICY, Arm
from torchloom_core.lab.evaluate.goodput import compare
from torchloom_core.lab.evaluate.goodput.arms import baseline, elastic
from torchloom_core.lab.evaluate.goodput.compare import Runs
from torchloom_core.lab.evaluate.goodput.run import Setting
from torchloom_core.lab.evaluate.results import AS_PLANNED, RunResult, Sweep, SweepPoint

SWEPT = ("spares", "standbys")
"""Keys of ``[evaluate]`` that can be varied: paid nodes beyond the job's own."""

MAX_VALUES = 200
_FORM = re.compile(r"(\w+)=(\d{1,9})\.\.(\d{1,9})(?::(\d{1,9}))?")
_HOURS = 24.0


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """A key of ``[evaluate]`` and its values, in ascending order."""

    name: str
    values: tuple[int, ...]


def range_of(text: str) -> Range:
    """Read ``spares=0..16`` or ``spares=0..16:4``; ConfigError if it cannot be read or varied."""
    found = _FORM.fullmatch(text)
    if not found:
        raise ConfigError(f"--sweep: need NAME=LOW..HIGH or NAME=LOW..HIGH:STEP, was {text!r}")
    name, low, high, step = found[1], int(found[2]), int(found[3]), int(found[4] or 1)
    if name not in SWEPT:
        raise ConfigError(f"--sweep: need {' or '.join(SWEPT)}, was {name!r}{nearest(name, SWEPT)}")
    count = len(range(low, high + 1, step)) if step else 0
    if not 2 <= count <= MAX_VALUES:
        raise ConfigError(f"--sweep: need 2 to {MAX_VALUES} values, was {count} in {text!r}")
    return Range(name=name, values=tuple(range(low, high + 1, step)))


def check(setting: Setting, swept: Range) -> None:
    """Raise TraceError if the trace has too few nodes for the largest value."""
    _with(setting, swept.name, swept.values[-1]).episode(0)


def arms_of(installed: Mapping[str, type[Any]], candidates: Iterable[Arm]) -> list[Arm]:
    """Return the arms of a sweep: both recovery modes, elastic, and the candidates."""
    arms = [
        baseline(
            "restart",
            "any failure stops all groups, with the warm standbys of the config",
            recovery="restart",
        ),
        baseline("per_step", "the other groups go on and one step is lost", recovery="per_step"),
    ]
    if MEMBERSHIP_POLICY in installed:
        arms.append(elastic())
    return [*arms, *candidates]


def sweep(
    play: Callable[[Setting, Sequence[Arm]], Runs],
    setting: Setting,
    swept: Range,
    arms: Sequence[Arm],
) -> Sweep:
    """Play the arms with every value on all seeds; return goodput by value."""
    played = [play(_with(setting, swept.name, value), arms) for value in swept.values]
    evaluate = setting.config.evaluate
    points = {}
    for arm in arms:
        line = [runs[arm.name] for runs in played]
        points[arm.name] = _points(swept.values, line)
        if arm.grows:
            capped = [[compare.as_planned(run) for run in runs] for runs in line]
            points[f"{arm.name}{AS_PLANNED}"] = _points(swept.values, capped)
    (other,) = (name for name in SWEPT if name != swept.name)
    nodes_of_one = evaluate.nodes_per_group if swept.name == "standbys" else 1
    return Sweep(
        name=swept.name,
        beside=f"{getattr(evaluate, other)} {other}",
        gpu_h_per_day=_HOURS * nodes_of_one * evaluate.gpus_per_node,
        lines=points,
        best={
            name: max(line, key=lambda point: point.goodput.value).value
            for name, line in points.items()
        },
    )


def _with(setting: Setting, name: str, value: int) -> Setting:
    evaluate = replace(setting.config.evaluate, **{name: value})
    return replace(setting, config=replace(setting.config, evaluate=evaluate))


def _points(
    values: Sequence[int], runs_by_value: Sequence[Sequence[RunResult]]
) -> tuple[SweepPoint, ...]:
    """Return the points of one arm, paired by seed with the best and the previous value."""
    best = max(runs_by_value, key=compare.mean_goodput)
    points = []
    before: tuple[int, list[float]] | None = None
    for value, runs in zip(values, runs_by_value, strict=True):
        useful = [_HOURS * run.goodput * run.gpus for run in runs]
        more = None
        if before is not None:
            pairs = zip(useful, before[1], strict=True)
            more = compare.interval([(now - then) / (value - before[0]) for now, then in pairs])
        points.append(
            SweepPoint(
                value=value,
                goodput=compare.interval(run.goodput for run in runs),
                to_best=None if runs is best else compare.gain(runs, best),
                useful_gpu_h_per_day=compare.interval(useful),
                more_gpu_h_per_day=more,
            )
        )
        before = value, useful
    return tuple(points)
