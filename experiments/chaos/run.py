"""Kill and freeze every process of a live run; count what torchLoom caused.

    python experiments/chaos/run.py --kills 300 --seed 7         # without the lighthouse
    python experiments/chaos/run.py --kills 200 --seed 31 --standbys --add
    python experiments/chaos/run.py --kills 60 --seed 8 --add    # one more portion

The exit status is 1 if torchLoom caused any failure, 2 if the run did not start.
"""

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console

from experiments.chaos import report, script
from experiments.chaos.judge import judge
from experiments.chaos.live_play import PlayError, play_with_bar
from experiments.chaos.play import Play

HERE = Path(__file__).parent


def play(seed: int, kills: int, folder: Path, console: Console, *, standbys: bool) -> None:
    """Play one portion with a progress bar."""
    written = script.write(seed, kills, with_standbys=standbys)

    def show(run: Play) -> tuple[int, str]:
        struck = ", ".join(f"{count} {what}" for what, count in sorted(run.struck.items()))
        text = f"seed {seed}: {run.doing}; {run.requested} requests; {struck}"
        return sum(run.struck.values()), text

    total = len(written.strikes)

    def make() -> Play:
        return Play(written, seed, folder, with_standbys=standbys)

    play_with_bar(make, folder, "person.err", total, show, console)


def main() -> int:
    """Play, judge, sum up, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="and a third as many freezes")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--add", action="store_true", help="keep the results of other seeds")
    parser.add_argument(
        "--standbys",
        action="store_true",
        help="three hosts: standby Weavers, a cluster of three brokers, TLS; into standbys.json",
    )
    parser.add_argument("--again", action="store_true", help="judge the stored logs, play nothing")
    parser.add_argument(
        "--out", type=Path, default=Path("build/chaos"), help="logs and trajectories"
    )
    parser.add_argument(
        "--results", type=Path, default=HERE, help="where results.json and chaos.png go"
    )
    options = parser.parse_args()
    if options.kills < 1:
        parser.error(f"--kills: need at least 1, was {options.kills}")
    console = Console(width=None if sys.stdout.isatty() else 110)
    if options.standbys:
        os.environ["TORCHFT_QUORUM_RETRIES"] = "100"  # as torchLoom's lighthouse asks for
    folder = (options.out / f"seed-{options.seed}").absolute()
    options.results.mkdir(parents=True, exist_ok=True)
    try:
        if not options.again:
            play(options.seed, options.kills, folder, console, standbys=options.standbys)
    except PlayError as error:
        console.print(str(error), markup=False)
        return 2
    findings = judge(folder)
    name = "standbys" if options.standbys else "results"
    results = options.results / f"{name}.json"
    others = [p for p in report.read(results) if p["seed"] != options.seed] if options.add else []
    portions = [*others, report.portion_of(options.seed, findings, folder)]
    report.write(results, portions)
    report.draw(options.results / f"{'standbys' if options.standbys else 'chaos'}.png", portions)
    ours = report.show(portions, console)
    console.print(
        f"with seed {options.seed} {findings.counts['kills']} kills and "
        f"{findings.counts['freezes']} freezes in {findings.seconds:.0f} s; "
        f"{ours} failures caused by torchLoom; logs in {folder}",
        markup=False,
    )
    return int(ours > 0)


if __name__ == "__main__":
    sys.exit(main())
