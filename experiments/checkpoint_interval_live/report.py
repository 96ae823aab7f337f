"""The runs of the comparison: goodput and overhead, verdicts, table and plot."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table

CHOSEN = "chosen"
OVERHEAD, NEAR = 0.035, 0.9
"""What the chosen interval must hold: its overhead at most, its goodput relative to the best."""


@dataclass
class Played:
    """One run: steps that count, seconds, the intervals that applied, and what saves cost.

    ``restarts_s`` is the time of all restarts together, and ``wall_s`` that and ``trained_s``.
    """

    arm: str
    seed: int
    steps: int
    restarts_s: float
    trained_s: float
    step_s: float
    intervals: list[float]
    felt_s: list[float]

    @property
    def wall_s(self) -> float:
        """All time from the first step on."""
        return self.trained_s + self.restarts_s

    @property
    def goodput(self) -> float:
        """Useful time as a share of all."""
        return self.steps * self.step_s / self.wall_s

    @property
    def overhead(self) -> float:
        """What the run felt of its saves, as a share of the time in which it trained."""
        return sum(self.felt_s) / self.trained_s


def with_equal_restarts(played: Sequence[Played]) -> list[Played]:
    """Return the runs as if restarts had taken the same time in all: the machine sets it."""
    restarts_s = statistics.median(one.restarts_s for one in played)
    return [replace(one, restarts_s=restarts_s) for one in played]


def by_arm(played: Sequence[Played]) -> dict[str, list[Played]]:
    """Return the runs of each arm, in the order of the seeds."""
    found: dict[str, list[Played]] = {}
    for one in played:
        found.setdefault(one.arm, []).append(one)
    return found


def goodput(runs: Sequence[Played]) -> float:
    """Return the mean over seeds."""
    return statistics.mean(run.goodput for run in runs)


def verdicts(played: Sequence[Played]) -> dict[str, bool]:
    """Return what must hold, in words, and whether it does."""
    arms = by_arm(played)
    chosen = arms.pop(CHOSEN)
    best = max(arms, key=lambda arm: goodput(arms[arm]))
    ratios = [own.goodput / its.goodput for own, its in zip(chosen, arms[best], strict=True)]
    overhead = statistics.mean(run.overhead for run in chosen)
    return {
        f"goodput relative to the best of the sweep, {best}: {statistics.mean(ratios):.3f} "
        f"[{min(ratios):.3f}, {max(ratios):.3f}] over {len(ratios)} seeds, need {NEAR:g}": (
            statistics.mean(ratios) >= NEAR
        ),
        f"overhead at the chosen interval: {overhead:.2%}, need at most {OVERHEAD:.1%}": (
            overhead <= OVERHEAD
        ),
    }


def shown(played: Sequence[Played]) -> Table:
    """Return the arms as a table."""
    table = Table(title="Goodput by checkpoint interval")
    table.add_column("interval")
    for name in (
        "goodput",
        "of each seed",
        "a save costs, ms",
        "saves",
        "overhead",
        "intervals, s",
    ):
        table.add_column(name, justify="right")
    for arm, runs in by_arm(played).items():
        felt_s = [one for run in runs for one in run.felt_s]
        table.add_row(
            arm,
            f"{goodput(runs):.3f}",
            " ".join(f"{run.goodput:.3f}" for run in runs),
            f"{1e3 * statistics.median(felt_s):.0f}" if felt_s else "",
            str(len(felt_s)),
            f"{statistics.mean(run.overhead for run in runs):.2%}",
            "; ".join(" ".join(f"{s:g}" for s in run.intervals) for run in runs if arm == CHOSEN),
        )
    return table


def plot(played: Sequence[Played], path: Path) -> None:
    """Draw goodput over the interval, a point a run; the chosen one is at its last interval."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for arm, runs in by_arm(played).items():
        style = "C1*" if arm == CHOSEN else "C0o"
        axes.plot([run.intervals[-1] for run in runs], [run.goodput for run in runs], style, ms=9)
    fixed = [runs for arm, runs in by_arm(played).items() if arm != CHOSEN]
    axes.plot([runs[0].intervals[0] for runs in fixed], [goodput(runs) for runs in fixed], "C0-",
              label="fixed interval, mean")  # fmt: skip
    axes.plot([], [], "C1*", ms=9, label="set by checkpoint_interval, at its last interval")
    axes.set_xscale("log")
    axes.set_xlabel("checkpoint interval, s")
    axes.set_ylabel("goodput")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path, dpi=120)
