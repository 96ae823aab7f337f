"""How much memory `torchloom fit --predictor auto` takes on a large fleet of rare samples.

    python experiments/fit_memory/run.py [--components 64000] [--rows 43] [--metrics 5] [--seed 0]

Makes up drives that report every 30 days, fits by auto in a process of its own, and prints how much
memory that process took at most. Ends with 1 if that was more than --most-gib, or the fit failed.
Writes results.json.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.trace import BundleWriter, Component, Event

HERE = Path(__file__).parent
DAY_NS = 86_400 * SECOND_NS
EVERY_D = 30
START_NS = 1_577_836_800 * SECOND_NS
A_YEAR = 0.02
"""Drives that fail."""


def write_fleet(path: Path, components: int, rows: int, metrics: int, seed: int) -> int:
    """Write the trace; return how many values it has."""
    random = np.random.default_rng(seed)
    days = EVERY_D * rows
    fails_d = random.exponential(365.0 / A_YEAR, components)
    ids = [f"d{number:06}" for number in range(components)]
    names = [f"smart_{number}" for number in range(metrics)]
    values = 0
    with BundleWriter(
        path,
        name=path.stem,
        start_ns=START_NS,
        end_ns=START_NS + days * DAY_NS,
        source="experiments/fit_memory",
        licence="Apache-2.0",
        synthetic=True,
    ) as writer:
        for name in ids:
            writer.add(Component(id=name, kind="disk"))
        for number in np.flatnonzero(fails_d < days).tolist():
            at_ns = START_NS + int(fails_d[number] * DAY_NS)
            writer.add(
                Event(
                    id=f"f{number}", t_event=at_ns, t_avail=at_ns, component=ids[number],
                    kind="disk_failure", fatal=True,
                )
            )  # fmt: skip
        for row in range(rows):
            day = 1 + EVERY_D * row
            there = np.flatnonzero(fails_d > day)
            near = np.clip(1.0 - (fails_d[there] - day) / 60.0, 0.0, 1.0)
            counts = random.poisson(0.02 + near[:, None], (len(there), metrics))
            at_ns = np.repeat(START_NS + day * DAY_NS, len(there) * metrics)
            table = {
                "t_event": at_ns,
                "t_avail": at_ns,
                "component": np.repeat(np.array(ids)[there], metrics),
                "metric": np.tile(np.array(names), len(there)),
                "value": counts.ravel().astype(np.float64),
                "valid": np.ones(len(at_ns), dtype=np.bool_),
            }
            writer.telemetry(pa.table(table))
            values += len(at_ns)
    return values


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--components", type=int, default=64_000)
    parser.add_argument("--rows", type=int, default=43)
    parser.add_argument("--metrics", type=int, default=5)
    parser.add_argument("--tick-days", type=int, default=EVERY_D)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most-gib", type=float, default=4.0)
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.tltrace"
        values = write_fleet(path, args.components, args.rows, args.metrics, args.seed)
        tick_s, horizon_s = str(86_400 * args.tick_days), str(86_400 * 2 * EVERY_D)
        until = f"{0.7 * EVERY_D * args.rows:.0f}d"
        words = ["fit", path.name, "--predictor", "auto", "--until", until]
        words += ["--tick-s", tick_s, "--every-s", tick_s, "--option", f"horizon_s={horizon_s}"]
        words += ["--false-alarms-per-node-day", "0.0005", "--json"]
        began_s = time.monotonic()
        found = subprocess.run(
            [sys.executable, "-m", "torchloom_core.cli", *words],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        took_s = time.monotonic() - began_s
    peak_gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"{values} values, {args.components} components: {peak_gib:.2f} GiB, {took_s:.0f} s")
    if found.returncode != 0:
        return 1
    card = json.loads(found.stdout)
    result = {
        "values": values, "components": args.components, "tick_days": args.tick_days,
        "peak_gib": round(peak_gib, 2), "took_s": round(took_s), "predictor": card["predictor"],
        "tried": {one["candidate"]: one.get("why", "") for one in card["tried"]},
    }  # fmt: skip
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    return int(peak_gib > args.most_gib)


if __name__ == "__main__":
    sys.exit(main())
