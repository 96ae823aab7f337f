"""Kill and freeze the leading Weaver of a live torchft run; count what is lost, doubled or late.

    python experiments/failover/run.py --strikes 100 --seed 1
    python experiments/failover/run.py --strikes 10 --hosts

The exit status is 1 if anything was, or if a take-over took more than 3 s; 2 if the run did not
start.
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

from rich.console import Console

from experiments.chaos.live_play import PlayError, play_with_bar
from experiments.chaos.processes import Place
from experiments.failover.judge import judge
from experiments.failover.play import Failover
from experiments.failover.weavers import COUNT

HERE = Path(__file__).parent


def main() -> int:
    """Play, judge, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strikes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--hosts", action="store_true", help="kill the leader with its lighthouse, behind a relay"
    )
    parser.add_argument("--weavers", type=int, default=COUNT, help="the leader and its standbys")
    parser.add_argument(
        "--twice", action="store_true", help="always strike the Weaver that takes over, too"
    )
    parser.add_argument("--again", action="store_true", help="judge the stored logs, play nothing")
    parser.add_argument("--out", type=Path, default=Path("build/failover"), help="logs, records")
    parser.add_argument("--results", type=Path, default=HERE, help="where the result goes")
    options = parser.parse_args()
    if options.strikes < 1:
        parser.error(f"--strikes: need at least 1, was {options.strikes}")
    console = Console(width=None if sys.stdout.isatty() else 110)
    os.environ["TORCHFT_QUORUM_RETRIES"] = "100"  # as torchLoom's lighthouse asks for
    folder = (options.out / f"seed-{options.seed}").absolute()

    if not options.again and (status := _play(options, folder, console)):
        return status
    findings = judge(folder)
    took, missing = sorted(findings.took_s), sorted(findings.missing_s) or [0.0]
    results = {
        "seed": options.seed,
        "counts": dict(sorted(findings.counts.items())),
        "take-over s: median, 95 %, longest": [
            round(value, 2)
            for value in (statistics.median(took), took[int(0.95 * (len(took) - 1))], took[-1])
        ],
        "missing at the copies s: median, longest": [
            round(statistics.median(missing), 2),
            round(missing[-1], 2),
        ],
        "longest time between two steps s": round(findings.stall_s, 2),
        "faults": findings.faults,
        "load": os.getloadavg()[0],
        "cores": os.cpu_count(),
    }
    options.results.mkdir(parents=True, exist_ok=True)
    name = "hosts" if options.hosts else "twice" if options.twice else "results"
    (options.results / f"{name}.json").write_text(json.dumps(results, indent=2) + "\n")
    console.print_json(data=results)
    console.print(f"logs in {folder}", markup=False)
    return int(bool(findings.faults))


def _play(options: argparse.Namespace, folder: Path, console: Console) -> int:
    """Play with a progress bar; return 2 if the run did not start."""

    def show(run: Failover) -> tuple[int, str]:
        text = f"{run.doing}; {run.requested} requests; longest take-over {run.longest_s:.2f} s"
        return run.done, text

    try:
        play_with_bar(
            lambda: Failover(
                Place(folder),
                options.seed,
                options.strikes,
                options.weavers,
                hosts=options.hosts,
                twice=options.twice,
            ),
            folder,
            "person.err",
            options.strikes,
            show,
            console,
        )
    except PlayError as error:
        console.print(str(error), markup=False)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
