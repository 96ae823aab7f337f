"""Vary the costs, to find where the sign of a gain changes."""

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from torchloom_core.lab.evaluate.goodput import compare
from torchloom_core.lab.evaluate.goodput.arms import Arm, without_policies
from torchloom_core.lab.evaluate.goodput.compare import Runs
from torchloom_core.lab.evaluate.goodput.run import Setting
from torchloom_core.lab.evaluate.results import SensitivityPoint

COSTS = ("restart_s", "detect_s", "migrate_s", "checkpoint_s")
FACTORS = (0.25, 1.0, 4.0)
SEEDS = 10
"""Maximum number of seeds per point, as there are many points."""


class Player(Protocol):
    """The part of the study that is needed here."""

    def play(self, setting: Setting, arms: Sequence[Arm], most: int | None = None) -> Runs:
        """Return the runs of every arm, on the first ``most`` seeds."""


def runs_of(candidates: int, seeds: int) -> int:
    """Return the number of runs."""
    return len(COSTS) * len(FACTORS) * 2 * candidates * min(seeds, SEEDS)


def vary_costs(
    player: Player, setting: Setting, candidates: Sequence[Arm]
) -> tuple[SensitivityPoint, ...]:
    """Play each candidate, and the same job without it, with each cost in turn times a factor.

    With at most ``SEEDS`` seeds, the gain at factor 1 equals that of the study.
    """
    points = []
    for cost in COSTS:
        for factor in FACTORS:
            costs = setting.config.costs
            changed = replace(costs, **{cost: getattr(costs, cost) * factor})
            other = replace(setting, config=replace(setting.config, costs=changed))
            runs = player.play(other, candidates, SEEDS)
            without = player.play(other, [without_policies(arm) for arm in candidates], SEEDS)
            points += [
                SensitivityPoint(
                    arm=arm.name,
                    cost=cost,
                    factor=factor,
                    gain=compare.gain(runs[arm.name], without[arm.name]),
                )
                for arm in candidates
            ]
    return tuple(points)
