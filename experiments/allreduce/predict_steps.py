"""How well the tuner's model of a step predicts modes on links that it was not fitted on.

    python experiments/allreduce/run.py --constant unshaped,1000,200,50
    python experiments/allreduce/predict_steps.py --fitted changing --runs constant-unshaped,...

The model learns from the static arms of one run and seed, one arm after the other, as the policy
learns: bytes, coding, computing, latency. Of each other run it sees the first few steps in one
mode, which show the bandwidth, and predicts the step of every mode there. It reads the journals
of ``run.py``.
"""

import argparse
import copy
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments.allreduce.arm import TUNER, by_step, read_journal
from experiments.allreduce.judge import SETTLING_STEPS
from experiments.chaos.record import Row
from torchloom_policies.allreduce.cost import CostModel
from torchloom_policies.allreduce.step_samples import StepSample

HERE = Path(__file__).parent
SHOWN_STEPS = 5
"""Steps of the mode that shows the bandwidth."""

MOST_OFF = 0.15


@dataclass(frozen=True)
class Prediction:
    """The measured median step of a mode in a run, s, and the model's prediction."""

    run: str
    source: str
    mode: str
    measured_s: float
    foretold_s: float

    @property
    def off(self) -> float:
        """Relative error of the prediction."""
        return self.foretold_s / self.measured_s - 1


def samples(folder: Path) -> list[StepSample]:
    """Return the steps of an arm, as the policy sees them, that all ranks have reported."""
    ranks = len(list(folder.glob("rank*.jsonl")))
    found = by_step(read_journal(folder, rank) for rank in range(ranks))
    whole = (rows for _, rows in sorted(found.items()) if len(rows) == ranks)
    return [_sample(rows) for rows in whole]


def _sample(rows: Sequence[Row]) -> StepSample:
    waited_least = min(rows, key=lambda row: float(row["wire"]))
    first = rows[0]
    return StepSample(
        now_s=first["t"],
        step=first["step"],
        mode=first["mode"],
        ranks=len(rows),
        every=1,
        step_s=max(row["step_time"] for row in rows),
        compute_s=max(row["compute"] for row in rows),
        compress_s=statistics.median(row["compress"] for row in rows),
        wire_s=waited_least["wire"],
        overlap_s=waited_least["overlap"],
        sent_bytes=first["bytes"],
        gradient_bytes=first["gradient"],
        reductions=first["reductions"],
    )


def fitted(arms: Sequence[list[StepSample]]) -> CostModel:
    """Return a model that has seen all steps of these arms."""
    model = CostModel(dict.fromkeys(steps[0].mode for steps in arms))
    for steps in arms:
        before_s = steps[0].now_s
        for step in steps:
            model.link.pass_time(max(0.0, step.now_s - before_s))
            before_s = step.now_s
            model.learn(step)
        model.link.widen()  # the next arm begins on other links
    return model


def predict(run: str, model: CostModel, arms: Sequence[list[StepSample]]) -> Iterator[Prediction]:
    """Yield the predictions for each mode in a run, from a few steps of one mode.

    That mode is in turn each one that sends enough to show the bandwidth. A mode that the model was
    not fitted on is left out.
    """
    arms = [steps for steps in arms if steps[0].mode in model.modes]
    for shown in arms:
        adapted = copy.deepcopy(model)
        for step in shown[:SHOWN_STEPS]:
            adapted.learn(step)
        if adapted.link.is_blind:
            continue
        for steps in arms:
            settled = [step.step_s for step in steps[SETTLING_STEPS:]]
            cost = adapted.cost(steps[0].mode)
            if settled and cost is not None:
                measured_s = statistics.median(settled)
                yield Prediction(run, shown[0].mode, steps[0].mode, measured_s, cost.step_s)


def arms_of(folder: Path, seed: int) -> list[list[StepSample]]:
    """Return the steps of each static arm of a run and seed."""
    names = [path for path in sorted(folder.glob(f"*-{seed}")) if path.name != f"{TUNER}-{seed}"]
    try:
        found = [steps for steps in map(samples, names) if steps]
    except (KeyError, TypeError, ValueError) as error:
        raise SystemExit(f"{folder}: need journals of run.py: {error}") from None
    if not found:
        raise SystemExit(f"{folder}: need journals of run.py, static arms of seed {seed}")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logs", type=Path, default=Path("build/allreduce"))
    parser.add_argument("--fitted", default="changing", help="the run that it learns from")
    parser.add_argument(
        "--runs",
        default="constant-unshaped,constant-1000,constant-200,constant-50",
        help="the runs that it predicts",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "foretold.json")
    args = parser.parse_args(argv)
    model = fitted(arms_of(args.logs / args.fitted, args.seed))
    rows = [
        row
        for run in args.runs.split(",")
        for row in predict(run, model, arms_of(args.logs / run, args.seed))
    ]
    if not rows:
        raise SystemExit(f"--runs: need {SETTLING_STEPS + 1} steps of a mode at least, in each run")
    table = Table("run", "bandwidth from", "mode", "measured, s", "predicted, s", "error")
    for row in rows:
        times = f"{row.measured_s:.3f}", f"{row.foretold_s:.3f}"
        table.add_row(row.run, row.source, row.mode, *times, f"{row.off:+.0%}")
    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print(table)
    off = [abs(row.off) for row in rows]
    most = max(off)
    word = "met" if most <= MOST_OFF else "not met"
    within = sum(each <= MOST_OFF for each in off)
    console.print(
        f"{word}: {within} of {len(off)} within {MOST_OFF:.0%}, median {statistics.median(off):.0%}"
        f" off, {most:.0%} at the most"
    )
    args.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0 if most <= MOST_OFF else 1


if __name__ == "__main__":
    sys.exit(main())
