"""A simulated month of telemetry: bytes over time with retention and without.

``python experiments/month/space.py --days 30 --plot experiments/month/space.png``

A few workers are recorded in full and thinned as they would be live; telemetry is scaled to
``--as-if`` workers, decisions are not.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from torchloom_core.config.schema import Config
from torchloom_core.config.trajectory import Trajectory
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.trajectory.layout import UNSEALED, part_paths
from torchloom_core.live.trajectory.retention import prune
from torchloom_core.live.trajectory.retention_steps import Step
from torchloom_core.live.trajectory.sealing import seal
from torchloom_core.live.trajectory.thinned import about, raw_parts, thinned_files
from torchloom_core.live.trajectory.writer import TrajectoryWriter
from torchloom_core.wire.codec import encode_telemetry
from torchloom_core.wire.events import Tick
from torchloom_core.wire.messages import Telemetry

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import fleet
from trajectory_bytes import plausible

START_NS = 1_800_000_000 * SECOND_NS
_HOUR_S = 3600
_GIB = 1 << 30
_PART_BYTES = 1 << 20


class Month:
    """A record of some workers, hour by hour, and the bytes that retention has removed."""

    def __init__(self, root: Path, workers: int) -> None:
        self.root = root
        self.names = fleet.names(workers)
        self.thinned_bytes = self.parts_thinned = 0
        self.pass_s = 0.0
        self._rng = np.random.default_rng(0)
        self._writer = TrajectoryWriter(
            root, fleet.RUN, 1, Config(), {}, START_NS, part_bytes=_PART_BYTES
        )
        self.folder = self._writer.folder

    def record(self, hour: int) -> None:
        """Record an hour: a batch of a sample of 30 metrics a worker, and a tick, each second."""
        table = plausible(self._rng, len(self.names), _HOUR_S).astype("<f8")
        for second in range(_HOUR_S):
            at = hour * _HOUR_S + second + 1
            ts_ns = START_NS + at * SECOND_NS
            for column, worker in enumerate(self.names):
                batch = Telemetry(
                    run=fleet.RUN,
                    worker=worker,
                    incarnation=1,
                    seq=at,
                    state="training",
                    step=at,
                    progress_age_s=round(float(self._rng.random()), 9),
                    metrics=fleet.METRICS,
                    ts_ns=ts_ns.to_bytes(8, "little"),
                    values=table[second, column].tobytes(),
                )
                self._writer.telemetry(encode_telemetry(batch), ts_ns + 1_000_000 * column)
            self._writer.event(Tick(), ts_ns, ())
        self._writer.flush()

    def thin(self, rules: Trajectory, hour: int) -> None:
        """Run a pass of retention at the end of an hour."""

        def did(step: Step, left: int) -> None:
            if step.act == "thin":
                self.thinned_bytes += step.bytes
                self.parts_thinned += len(step.sources)

        for part in sorted(self.folder.glob(UNSEALED))[:-1]:
            while part.exists():  # the Weaver's thread may be at it
                seal(part)
                time.sleep(0.01)
        began_s = time.process_time()
        prune(self.root, rules, now_ns=START_NS + (hour + 1) * _HOUR_S * SECOND_NS, did=did)
        self.pass_s += time.process_time() - began_s

    def bytes_by_kind(self) -> dict[str, int]:
        """Return the bytes of raw and thinned telemetry and of decisions."""
        found = {"raw": sum(map(_size, raw_parts(self.folder))), "fine": 0, "coarse": 0}
        for file in thinned_files(self.folder):
            found["fine" if about(file.path).every_s == 60 else "coarse"] += _size(file.path)
        return found | {"decisions": sum(map(_size, part_paths(self.folder, "events")))}


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def main() -> int:
    """Print a line a day; return 1 if the month does not fit the budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--as-if", type=int, default=1000)
    parser.add_argument("--budget", type=float, default=100.0, help="GiB")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rules = Trajectory(budget_gib=0, low_gib=0)
    scale = options.as_if / options.workers
    days = []
    with tempfile.TemporaryDirectory() as folder:
        month = Month(Path(folder), options.workers)
        for hour in range(24 * options.days):
            month.record(hour)
            if hour % 6 == 5:
                month.thin(rules, hour)
            if hour % 24 == 23:
                kinds = month.bytes_by_kind()
                scaled = {kind: kinds[kind] * scale / _GIB for kind in ("raw", "fine", "coarse")}
                scaled["decisions"] = kinds["decisions"] / _GIB
                scaled["without"] = (kinds["raw"] + month.thinned_bytes) * scale / _GIB
                days.append(scaled)
                total = sum(v for kind, v in scaled.items() if kind != "without")
                print(
                    f"day {hour // 24 + 1:2}: {total:6.1f} GiB with retention (raw "
                    f"{scaled['raw']:.1f}, 60 s {scaled['fine']:.1f}, 600 s "
                    f"{scaled['coarse']:.2f}, decisions {scaled['decisions']:.2f}), "
                    f"{scaled['without']:.0f} GiB without",
                    flush=True,
                )
    last, week = days[-1], days[-min(8, len(days))]
    total = sum(v for kind, v in last.items() if kind != "without")
    before = sum(v for kind, v in week.items() if kind != "without")
    span = max(1, min(8, len(days)) - 1)
    print(f"slope of the last {span} days: {(total - before) / span:.2f} GiB a day with retention")
    print(f"without: {last['without'] / len(days):.1f} GiB a day")
    samples = options.workers * options.days * 86_400 * len(fleet.METRICS)
    print(f"passes: {month.pass_s:.1f} s of CPU, {samples / 1e6:.0f} million values recorded")
    print(f"{total:.1f} GiB after {options.days} days, budget {options.budget:g} GiB")
    if options.json:
        options.json.write_text(json.dumps(days, indent=1) + "\n", encoding="utf-8")
    if options.plot:
        plot(days, options.plot, options.as_if)
    return int(total > options.budget)


def plot(days: list[dict[str, float]], path: Path, workers: int) -> None:
    """Draw the bytes by day, with and without retention."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    numbers = range(1, len(days) + 1)
    figure, axes = plt.subplots(figsize=(8, 4.5))
    kinds = {"raw": "raw", "fine": "60 s", "coarse": "600 s", "decisions": "decisions"}
    axes.stackplot(
        numbers, *([day[kind] for day in days] for kind in kinds), labels=kinds.values(), alpha=0.8
    )
    axes.plot(numbers, [day["without"] for day in days], "k--", label="without retention")
    axes.set(xlabel="day", ylabel="GiB", title=f"{workers:,} workers, 30 metrics at 1 Hz")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
