"""Compare torchLoom's lighthouse with torchft's: stalls, restarts, scale, quorums, bad input.

    python experiments/lighthouse/run.py all
    python experiments/lighthouse/run.py stalls --runs 3

The exit status is 1 if a requirement is not met.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

os.environ.setdefault("RUST_LOG", "error")  # before torchft is imported, which logs much

from experiments.lighthouse import fuzz, histories, report, restarts, scale, stalls

HERE = Path(__file__).parent
SIZES = (100, 300, 1000)
_AT_ONCE = 30

Show = Callable[[str], None]


class Trials:
    """The requested trials, with their progress."""

    def __init__(self, options: argparse.Namespace, progress: Progress) -> None:
        self._options = options
        self._progress = progress
        self._rng = random.Random(options.seed)

    def stalls(self) -> list[dict[str, Any]]:
        """Strike one of three groups repeatedly, alternating the lighthouses."""
        found: list[stalls.Stall] = []
        show, step = self._bar("stalls", self._options.runs * len(stalls.ARMS))
        for number in range(self._options.runs):
            for arm in stalls.ARMS:
                found += stalls.play(
                    self._folder(f"stalls/{number}-{arm.name}"), arm, self._rng, show
                )
                step()
        return [asdict(stall) for stall in found]

    def restarts(self) -> list[dict[str, Any]]:
        """Kill the lighthouse repeatedly, torchLoom's often and torchft's a few times."""
        found = []
        plan = [(stalls.OURS, self._options.kills), (stalls.THEIRS, self._options.their_kills)]
        show, step = self._bar("restarts", len(plan))
        for arm, kills in plan:
            folder = self._folder(f"restarts/{arm.name}")
            found.append(asdict(restarts.play(folder, arm, kills, self._rng, show)))
            step()
        return found

    def takeovers(self) -> list[float]:
        """Kill a lighthouse that has a standby."""
        show, step = self._bar("takeovers", self._options.runs)
        found = []
        for number in range(self._options.runs):
            show("a standby takes over")
            found.append(restarts.take_over(self._folder(f"takeovers/{number}"), stalls.OURS))
            step()
        return found

    def scale(self) -> list[dict[str, Any]]:
        """Measure both at each size."""
        found = []
        show, step = self._bar("scale", len(SIZES) * len(scale.ARMS))
        for size in SIZES:
            for arm in scale.ARMS:
                folder = self._folder(f"scale/{size}-{arm.name}")
                found.append(asdict(scale.measure(folder, arm, size, self._options.rounds, show)))
                step()
        return found

    def histories(self) -> dict[str, int]:
        """Play random histories on both."""
        count = self._options.histories
        _, step = self._bar("histories", -(-count // _AT_ONCE))
        total = {"played": 0, "undecidable": 0, "quorums": 0, "different": 0}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # examples are for trying out, and so we do
            while total["played"] < count:
                batch = [histories.histories.example() for _ in range(_AT_ONCE)]
                for played in asyncio.run(histories.play_all(batch)):
                    total["played"] += 1
                    if not histories.is_decidable(played):
                        total["undecidable"] += 1
                        continue
                    ours = histories.ours(played)
                    total["quorums"] += sum(map(len, played.answers.values()))
                    if ours != played.answers:
                        total["different"] += 1
                        self._progress.print(f"different: {played}", markup=False)
                step()
        return total

    def fuzz(self) -> dict[str, Any]:
        """Send malformed messages."""
        show, _ = self._bar("fuzz", self._options.messages)
        folder = self._folder("fuzz")
        done = fuzz.play(
            folder, self._options.messages, self._options.seed, lambda n: show(f"{n} messages")
        )
        return asdict(done)

    def _folder(self, name: str) -> Path:
        folder = (self._options.out / name.replace(" ", "-").replace(",", "")).absolute()
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        return folder

    def _bar(self, name: str, total: int) -> tuple[Show, Callable[[], None]]:
        task = self._progress.add_task(name, total=total)
        return (
            lambda text: self._progress.update(task, description=f"{name}: {text}"),
            lambda: self._progress.advance(task),
        )


TRIALS = ("stalls", "restarts", "takeovers", "scale", "histories", "fuzz")


def main() -> int:
    """Run, print, draw and store the trials."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trial", choices=[*TRIALS, "all"])
    parser.add_argument("--runs", type=int, default=10, help="of stalls and takeovers")
    parser.add_argument("--kills", type=int, default=50, help="of torchLoom's lighthouse")
    parser.add_argument("--their-kills", type=int, default=9, help="of torchft's")
    parser.add_argument("--rounds", type=int, default=10, help="quorum rounds of each size")
    parser.add_argument("--histories", type=int, default=5000)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/lighthouse"), help="logs")
    parser.add_argument("--results", type=Path, default=HERE, help="results.json and plots")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 110)
    path = options.results / "results.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        trials = Trials(options, progress)
        for name in TRIALS if options.trial == "all" else [options.trial]:
            results[name] = getattr(trials, name)()
            results["machine"] = report.machine()
            options.results.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(results, indent=1) + "\n")
    report.show(results, console)
    report.draw(results, options.results)
    broken = report.broken(results)
    for line in broken:
        console.print(f"not met: {line}", markup=False)
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
