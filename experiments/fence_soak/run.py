"""Change knobs of a live run while its processes are killed and frozen.

    python experiments/fence_soak/run.py --changes 200 --seed 1

The exit status is 1 if any requirement is violated, 2 if the run did not even start.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from experiments.bench.machine import with_torch
from experiments.chaos.live_play import PlayError, play_with_bar
from experiments.fence_soak import script
from experiments.fence_soak.judge import Findings, judge
from experiments.fence_soak.play import Play

HERE = Path(__file__).parent


def play(
    algorithm: script.Algorithm, seed: int, changes: int, folder: Path, console: Console
) -> None:
    """Play one script with a progress bar."""

    def make() -> Play:
        return Play(script.write(seed, changes, algorithm), seed, folder, algorithm)

    def show(run: Play) -> tuple[int, str]:
        struck = ", ".join(f"{what} {count}" for what, count in sorted(run.struck.items()))
        return run.requested, f"{run.doing}; {struck}"

    play_with_bar(make, folder, "person.log", changes, show, console)


def report(findings: Findings, console: Console) -> None:
    """Print the counts and the violated requirements."""
    counted = Table("", Column("", justify="right"), title="counted", title_justify="left")
    for name, count in sorted(findings.counts.items()):
        counted.add_row(name, str(count))
    console.print(counted)
    for line in findings.faults:
        console.print(line, markup=False)
    console.print(f"{len(findings.faults)} violated requirements")


def results(algorithm: str, seed: int, findings: Findings) -> dict[str, Any]:
    """Return the findings as they are stored."""
    return {
        "machine": with_torch(),
        "algorithm": algorithm,
        "seed": seed,
        "counts": dict(sorted(findings.counts.items())),
        "faults": findings.faults,
    }


def main() -> int:
    """Play, judge, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=script.KNOBS, default="ddp")
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--out", type=Path, default=Path("build/fence_soak"), help="logs and trajectories"
    )
    parser.add_argument("--results", type=Path, default=HERE, help="where the findings go")
    options = parser.parse_args()
    if options.changes < 1:
        parser.error(f"--changes: need at least 1, was {options.changes}")
    console = Console(width=None if sys.stdout.isatty() else 110)
    folder = (options.out / f"{options.algorithm}-{options.seed}").absolute()
    options.results.mkdir(parents=True, exist_ok=True)
    try:
        play(options.algorithm, options.seed, options.changes, folder, console)
    except PlayError as error:
        console.print(str(error), markup=False)
        return 2
    findings = judge(folder, options.algorithm)
    text = json.dumps(results(options.algorithm, options.seed, findings), indent=1) + "\n"
    (options.results / f"{folder.name}.json").write_text(text)
    report(findings, console)
    return int(bool(findings.faults))


if __name__ == "__main__":
    sys.exit(main())
