"""Throughput before and after layers are moved off a slow worker, and what the model says."""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.progress import track
from rich.table import Table

from experiments.pipeline_balance.worker import SLOWER
from torchloom_core.cli.capability import console

WORKERS = [f"w{number}" for number in range(6)]
_TRAINER = Path(__file__).with_name("worker.py")


def main() -> None:
    """Run it with a slow worker drawn for each repeat, and print medians and ranges."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build/pipeline_balance.json"))
    options = parser.parse_args()
    drawn = random.Random(options.seed)
    repeats = track(range(options.repeats), "repeats", console=console())
    results = [_once(drawn.choice(WORKERS), options.steps) for _ in repeats]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1), encoding="utf-8")
    table = Table("slow", "ms before", "ms after", "faster", "model says, ms", "measured / model")
    for one in results:
        table.add_row(*(f"{x:.2f}" if isinstance(x, float) else str(x) for x in one.values()))
    for name, choose in (("median", statistics.median), ("least", min), ("most", max)):
        columns = list(zip(*(list(one.values())[1:] for one in results), strict=True))
        table.add_row(name, *(f"{choose(column):.2f}" for column in columns))
    console().print(f"one worker of six takes {SLOWER:g} times as long for each layer")
    console().print(table)
    _plot(results, options.out.with_suffix(".png"))


def _once(slow: str, count: int) -> dict[str, Any]:
    """Train with one slow worker, and compare steps before the first and after the last move."""
    with tempfile.TemporaryDirectory() as folder:
        serve = [sys.executable, "-m", "torchloom_core.cli", "rendezvous", "--bind", "127.0.0.1:0"]
        rendezvous = subprocess.Popen(
            [*serve, "--workers", str(len(WORKERS))],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert rendezvous.stdout is not None
        address = rendezvous.stdout.readline().split()[-1]
        own = {"TORCHLOOM_RENDEZVOUS": address, "OMP_NUM_THREADS": "1"}
        train = [sys.executable, str(_TRAINER), "--slow", slow, "--steps", str(count)]
        workers = [
            subprocess.Popen(
                [*train, "--journal", folder], env=os.environ | own | {"TORCHLOOM_WORKER": name}
            )
            for name in WORKERS
        ]
        journal = Path(folder) / f"{slow}.jsonl"
        seen: list[dict[str, Any]] = []
        while all(worker.poll() is None for worker in workers):
            time.sleep(1.0)
            seen += _plans(address)
        for worker in workers:
            worker.wait()
        rendezvous.terminate()
        rendezvous.communicate()
        lines = [json.loads(line) for line in journal.read_text().splitlines()]
    steps = [(b["layers"], b["s"] - a["s"]) for a, b in pairwise(lines)]
    first, last = steps[0][0], steps[-1][0]
    before_ms = 1e3 * statistics.median(s for layers, s in steps if layers == first)
    after_ms = 1e3 * statistics.median(s for layers, s in steps[-20:] if layers == last)
    return {
        "slow": slow,
        "before_ms": before_ms,
        "after_ms": after_ms,
        "faster": before_ms / after_ms,
        "model_ms": (model_ms := _expected_ms(seen)),
        "of_model": after_ms / model_ms if model_ms else float("nan"),
    }


def _expected_ms(seen: list[dict[str, Any]]) -> float:
    """Return the last step's time by the model, with what steps took beyond layers before a move.

    So nothing in it is measured in the steps that it is compared with, but the layers' times.
    """
    if not seen or seen[0]["generation"] == seen[-1]["generation"]:
        return float("nan")
    before = [one for one in seen if one["generation"] == seen[0]["generation"]]
    return float(seen[-1]["step_ms"] - seen[-1]["fixed_ms"] + before[-1]["fixed_ms"])


def _plans(address: str) -> list[dict[str, Any]]:
    """Return what ``torchloom plan`` says now; nothing without an answer."""
    command = [sys.executable, "-m", "torchloom_core.cli", "plan", "--json"]
    done = subprocess.run(
        [*command, "--rendezvous", address], capture_output=True, text=True, check=False
    )
    return [json.loads(done.stdout)] if done.returncode == 0 else []


def _plot(results: list[dict[str, Any]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5))
    places = range(len(results))
    for shift, name in ((-0.25, "before_ms"), (0.0, "after_ms"), (0.25, "model_ms")):
        label = name.removesuffix("_ms")
        axes.bar([p + shift for p in places], [r[name] for r in results], 0.24, label=label)
    axes.set_xticks(list(places), [f"{r['slow']} slow" for r in results])
    axes.set_ylabel("ms per step")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
