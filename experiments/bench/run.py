"""Measure torchLoom's speed: benchmarks, each side by side with what it is compared with.

``make bench`` calls this; ``python experiments/bench/run.py --help`` lists its options.
"""

import argparse
import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import ack_cost
import closed_loop
import command_latency
import failure_repair
import fence_cost
import herd_cost
import importing
import ingest
import long_trace
import machine
import measuring_cost
import report
import step_cost
import tick
import trajectory_bytes
from figure import Figure

BENCHMARKS: dict[str, Callable[..., Coroutine[None, None, list[Figure]]]] = {
    "ingest": ingest.measure,
    "bytes": trajectory_bytes.measure,
    "step": step_cost.measure,
    "command": command_latency.measure,
    "fence": fence_cost.measure,
    "measuring": measuring_cost.measure,
    "tick": tick.measure,
    "ack": ack_cost.measure,
    "herd": herd_cost.measure,
    "events": failure_repair.measure,
    "watched": closed_loop.measure,
    "scale": long_trace.measure,
    "import": importing.measure,
}
PLOT = Path(__file__).parent / "speed.png"


def main() -> None:
    """Run the requested benchmarks, and report."""
    options = _options()
    described = machine.describe()
    figures: list[Figure] = []
    for name in options.only or BENCHMARKS:
        print(f"{name} ...", flush=True)
        figures += asyncio.run(BENCHMARKS[name](options.repeats, tiny=options.tiny))
    report.show(figures, described)
    if options.json is not None:
        report.save_json(figures, described, options.json)
    report.save_plot(figures, options.plot)
    print(f"plot: {options.plot}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure torchLoom's speed, as ratios.")
    parser.add_argument(
        "--only", action="append", choices=BENCHMARKS, help="this one; repeatable; else all"
    )
    parser.add_argument(
        "--repeats", type=_positive, default=5, help="measurements of each, alternating [5]"
    )
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    parser.add_argument("--plot", type=Path, default=PLOT, help=f"where the plot goes [{PLOT}]")
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="only check that it runs; ignore the measurements",
    )
    return parser.parse_args()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"need at least 1, was {number}")
    return number


if __name__ == "__main__":
    main()
