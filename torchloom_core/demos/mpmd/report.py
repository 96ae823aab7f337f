"""The results of the demo: tables, and the checks."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from torchloom_core.demos.folder import show_promises
from torchloom_core.demos.mpmd.run import Run
from torchloom_core.demos.steplog import StepLog

_MEAN_OF = 10
"""Steps in the mean of a loss."""


@dataclass(frozen=True)
class Report:
    """The results of the pipeline, of its undisturbed run, and of the experts' runs."""

    pipeline: Run
    undisturbed: StepLog
    experts: Sequence[Run]

    def compared(self) -> tuple[int, int]:
        """Return how many losses were compared with the undisturbed run's, and how many differ."""
        expected = {row["step"]: row["loss"] for row in self.undisturbed.steps}
        seen = [row for log in self.pipeline.logs.values() for row in log.steps]
        known = [row for row in seen if not math.isnan(row["loss"])]
        return len(known), sum(row["loss"] != expected[row["step"]] for row in known)

    def weights_are_equal(self) -> bool:
        """Return whether all final weights are bitwise those of the undisturbed run."""
        ends = [log.end for log in self.pipeline.logs.values() if log.end]
        found = {one for end in ends for one in end["weights"].items()}
        expected = self.undisturbed.end
        return expected is not None and found == set(expected["weights"].items())

    def promises(self) -> dict[str, bool]:
        """Return what the demo must show, and whether it did."""
        compared, differing = self.compared()
        first, last = self.pipeline.losses[0], self.pipeline.losses[-1]
        members = len(self.pipeline.part.places) - self.pipeline.part.standbys
        logs = [log for run in (self.pipeline, *self.experts) for log in run.survivors]
        done = [run.part.steps for run in (self.pipeline, *self.experts) for _ in run.survivors]
        after = {run.part.name: self.losses_of(run)[1] for run in self.experts}
        left_out, *others = after.values()
        return {
            f"{compared} losses are bitwise those of an undisturbed run": (
                compared > 0 and not differing
            ),
            "the final weights of all layers are, too": self.weights_are_equal(),
            f"{first.worker} killed: the standby takes a part, {first.workers} workers go on": (
                first.workers == members
            ),
            f"{last.worker} killed without a standby: {last.workers} workers go on": (
                last.workers < members
            ),
            f"{len(logs)} workers that were not killed have made each of their steps once": all(
                _is_whole(log, steps) for log, steps in zip(logs, done, strict=True)
            ),
            "after the loss of two experts the loss is "
            + ", ".join(f"{value:.3f} ({name})" for name, value in after.items()): (
                left_out > max(others)
            ),
        }

    @staticmethod
    def losses_of(run: Run) -> tuple[float, float, float]:
        """Return the mean loss before a worker's death, after it, and at the end."""
        losses = {row["step"]: row["loss"] for log in run.survivors for row in log.steps}
        step = run.losses[0].step
        means = [
            statistics.fmean(loss for s, loss in losses.items() if low < s <= low + _MEAN_OF)
            for low in (step - _MEAN_OF, step + 1, run.part.steps - _MEAN_OF)
        ]
        return means[0], means[1], means[2]


def _is_whole(log: StepLog, steps: int) -> bool:
    """Return whether a worker has made each step once, from its first one on, to the last.

    One that has no part at the end, as the others are faster so, ends before.
    """
    made = [row["step"] for row in log.steps]
    last = steps if log.end is not None else made[-1] if made else 0
    return bool(made) and made == list(range(made[0], last + 1))


def show(console: Console, report: Report) -> None:
    """Print the tables and the checks."""
    table = _table("The pipeline's losses\n", "killed", "after step", "how it goes on", "workers")
    table.add_column("stall", justify="right", no_wrap=True)
    for loss in report.pipeline.losses:
        cells = (loss.worker, str(loss.step), loss.answer, str(loss.workers))
        table.add_row(*cells, f"{loss.stall_s:.2f} s")
    console.print(table)
    console.print()
    table = _table("Experts: a worker of four is killed\n", "experts", "how they go on")
    for name in ("stall", "loss before", "after", "at the end"):
        table.add_column(name, justify="right", no_wrap=True)
    for run in report.experts:
        (loss,) = run.losses
        means = (f"{mean:.3f}" for mean in report.losses_of(run))
        table.add_row(run.part.name, loss.answer, f"{loss.stall_s:.2f} s", *means)
    console.print(table)
    console.print()
    show_promises(console, report.promises())


def _table(title: str, *names: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name)
    return table


def summary_of(report: Report, seed: int) -> dict[str, Any]:
    """Return the results for JSON."""
    return {
        "seed": seed,
        "pipeline": [asdict(loss) for loss in report.pipeline.losses],
        "experts": {
            run.part.name: {
                **asdict(run.losses[0]),
                **dict(
                    zip(
                        ("loss_before", "loss_after", "loss_at_end"),
                        report.losses_of(run),
                        strict=True,
                    )
                ),
            }
            for run in report.experts
        },
        "promises": report.promises(),
    }
