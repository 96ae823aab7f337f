"""Where the sign of a gain flips as the costs vary."""

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from torchloom_core.evaluate import compare
from torchloom_core.evaluate.arms import Arm
from torchloom_core.evaluate.compare import Runs
from torchloom_core.evaluate.results import SensitivityPoint
from torchloom_core.evaluate.runs import Setting

COSTS = ("restart_s", "detect_s", "migrate_s", "checkpoint_s")
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
SEEDS = 3
"""Seeds that every point is played with, at most."""


class Player(Protocol):
    """The study, as far as it is needed here."""

    def play(self, setting: Setting, arms: Sequence[Arm], seeds: int | None = None) -> Runs:
        """Return the runs of every arm."""


def runs_of(candidates: int, seeds: int) -> int:
    """Return how many runs a sweep takes."""
    return len(COSTS) * len(FACTORS) * (candidates + 1) * min(seeds, SEEDS) if candidates else 0


def sweep(
    player: Player, setting: Setting, reference: Arm, candidates: Sequence[Arm]
) -> tuple[SensitivityPoint, ...]:
    """Play reference and candidates with each cost in turn so many times as large.

    The reference stays the arm that was best at the costs as they are.
    """
    if not candidates:
        return ()
    points = []
    for cost in COSTS:
        for factor in FACTORS:
            costs = setting.config.costs
            changed = replace(costs, **{cost: getattr(costs, cost) * factor})
            other = replace(setting, config=replace(setting.config, costs=changed))
            runs = player.play(other, [reference, *candidates], SEEDS)
            points += [
                SensitivityPoint(
                    arm=arm.name,
                    cost=cost,
                    factor=factor,
                    gain=compare.gain(runs[arm.name], runs[reference.name]),
                )
                for arm in candidates
            ]
    return tuple(points)
