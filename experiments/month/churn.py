"""24 simulated hours of workers that come and go: the kernel's memory and tables, hour by hour.

``python experiments/month/churn.py --workers 1000 --hours 24``
"""

import argparse
import gc
import re
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from torchloom_core.config.loading import convert
from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.activation.activation import activate
from torchloom_core.lab.activation.discovery import discover
from torchloom_core.live.dispatch.policy_guard import RecordedGuard
from torchloom_core.live.fleet.fault_log import MOST_KNOWN
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.wire.commands import Ack
from torchloom_core.wire.decisions import ForecastWanted, Issue
from torchloom_core.wire.events import Forecast, Tick
from torchloom_core.wire.messages import Exit, Hello, Telemetry

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import fleet

START_NS = 1_800_000_000 * SECOND_NS
_POLICIES = ("straggler", "silence", "hang", "failure_forecast", "lemon_nodes", "membership")
_SIZED = (dict, list, set, deque)
_FLAT_SHARE = 1.1
_OF_FAULTS = re.compile(r"fault_log|_histories")


def config(tick_s: float, forget_s: float) -> Config:
    """Return a config with the built-in policies in force."""
    table: dict[str, Any] = {
        "run": {"name": fleet.RUN},
        "weaver": {"tick_s": tick_s, "stale_after_s": 3 * tick_s, "forget_after_s": forget_s},
        "policies": {name: {} for name in _POLICIES},
        "predictors": {"trend": {}},
    }
    table["policies"]["failure_forecast"] = {"predictor": "trend"}
    return convert(table, Config, "churn")


class Fleet:
    """Workers of which some end, or fall silent, and new ones come in their place."""

    def __init__(self, kernel: Kernel, workers: int) -> None:
        self._kernel = kernel
        self._number = 0
        self._rng = np.random.default_rng(0)
        self._values = fleet.values(self._rng, 4096, 1)
        self.present: list[str] = []
        self.came = self.inputs = 0
        self.now_ns = START_NS
        for _ in range(workers):
            self.come()

    def feed(self, message: Any) -> None:
        """Feed an input, and answer each command and each forecast."""
        self.inputs += 1
        for output in self._kernel.step(message, self.now_ns):
            if isinstance(output, Issue):
                command = output.command
                self.feed(
                    Ack(
                        run=command.run,
                        command=command.id,
                        worker=command.worker,
                        incarnation=command.incarnation,
                        epoch=command.epoch,
                        status="rejected",
                        detail="a simulated worker",
                        ts_ns=self.now_ns,
                    )
                )
            elif isinstance(output, ForecastWanted):
                hazard = {worker: 0.01 for worker in self.present}
                self.feed(
                    Forecast(
                        id=output.id,
                        predictor=output.predictor,
                        horizon_s=600.0,
                        hazard=hazard,
                    )
                )

    def come(self) -> None:
        """Start a worker under a new name, on a new node."""
        self._number += 1
        self.came += 1
        name = f"g{self._number}-0"
        self.present.append(name)
        hello = Hello(
            run=fleet.RUN,
            worker=name,
            incarnation=1,
            group=f"g{self._number}",
            rank=0,
            node=f"n{self._number}",
            actuators=("drain", "checkpoint"),
            replica_id=f"g{self._number}:{self._number}",
            quorum_id=1,
        )
        self.feed(hello)

    def go(self) -> None:
        """End a worker: most are let go, one in ten falls silent, one in ten fails."""
        worker = self.present.pop(int(self._rng.integers(len(self.present))))
        way = self._rng.random()
        if way < 0.9:
            expected = bool(way < 0.8)
            status = 0 if expected else 1
            self.feed(
                Exit(run=fleet.RUN, worker=worker, incarnation=1, status=status, expected=expected)
            )

    def tick(self, step: int, tick_s: float) -> None:
        """Send a batch of each worker, then a tick."""
        self.now_ns += round(tick_s * SECOND_NS)
        ts_ns = self.now_ns.to_bytes(8, "little")
        rows = self._rng.integers(len(self._values), size=len(self.present))
        for worker, row in zip(self.present, rows.tolist(), strict=True):
            batch = Telemetry(
                run=fleet.RUN,
                worker=worker,
                incarnation=1,
                seq=step,
                state="training",
                step=step,
                progress_age_s=0.0,
                metrics=fleet.METRICS,
                ts_ns=ts_ns,
                values=self._values[row].tobytes(),
            )
            self.feed(batch)
        self.feed(Tick())
        self._kernel.changes()  # the Weaver stores these after each input
        self._kernel.fleet.long_gone.clear()


def tables(root: Any) -> dict[str, int]:
    """Return the sizes of all tables of torchLoom's objects, by their path from ``root``."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    waiting: deque[tuple[str, Any]] = deque([("", root)])
    while waiting:
        path, one = waiting.popleft()
        if id(one) in seen or path.count(".") > 8:
            continue
        seen.add(id(one))
        if isinstance(one, _SIZED):
            found[path] = len(one)
            continue
        if type(one).__module__.startswith("torchloom"):
            waiting.extend((f"{path}.{name}".lstrip("."), own) for name, own in _fields(one))
        elif isinstance(one, tuple):
            waiting.extend((f"{path}[{number}]", own) for number, own in enumerate(one[:20]))
    return found


def _fields(one: Any) -> Iterator[tuple[str, Any]]:
    names = [*getattr(one, "__dict__", {}), *getattr(one, "__struct_fields__", ())]
    return ((name, getattr(one, name)) for name in names)


def main() -> int:
    """Print a line an hour; return 1 if memory or a table grows after the first hours."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--churn", type=float, default=0.5, help="share of the workers an hour")
    parser.add_argument("--tick", type=float, default=30.0, help="simulated seconds a tick")
    parser.add_argument("--forget", type=float, default=7200.0, help="forget_after_s")
    options = parser.parse_args()
    settings = config(options.tick, options.forget)
    plugins = activate(settings, discover(), "churn")
    kernel = Kernel(settings, plugins, RecordedGuard())
    crowd = Fleet(kernel, options.workers)
    process, began_s, history = psutil.Process(), time.monotonic(), []
    ticks = round(3600 / options.tick)
    for hour in range(1, options.hours + 1):
        for tick in range(ticks):
            due = options.churn * options.workers * (tick + 1) / ticks
            done = options.churn * options.workers * tick / ticks
            for _ in range(int(due) - int(done)):
                crowd.go()
                crowd.come()
            crowd.tick(hour * ticks + tick, options.tick)
        gc.collect()
        rss = process.memory_info().rss / (1 << 20)
        history.append((rss, tables({"k": kernel}["k"]) | tables(plugins)))
        sizes = history[-1][1]
        print(
            f"hour {hour:2}: RSS {rss:6.1f} MiB, {len(kernel.fleet.hello)} rows, "
            f"{sum(sizes.values())} entries in {len(sizes)} tables, "
            f"{crowd.came} workers so far, {crowd.inputs} inputs, "
            f"{time.monotonic() - began_s:.0f} s",
            flush=True,
        )
    settled = min(len(history) - 1, max(1, round(2 * options.forget / 3600)))
    (rss_then, then), (rss_now, now) = history[settled], history[-1]
    grew = {
        path: (then.get(path, 0), size)
        for path, size in now.items()
        if size > _FLAT_SHARE * then.get(path, 0) + 16 and not _OF_FAULTS.search(path)
    }
    faults = kernel.fleet.fault_log.faults
    print(f"faults: {len(faults)}, kept for the memory of the policies, {MOST_KNOWN} at most")
    print(f"RSS from hour {settled + 1} to {len(history)}: {rss_then:.1f} to {rss_now:.1f} MiB")
    for path, (before, after) in sorted(grew.items()):
        print(f"grew: {path}: {before} to {after}")
    print("tables: flat" if not grew else f"tables: {len(grew)} grew")
    return int(bool(grew) or rss_now > _FLAT_SHARE * rss_then)


if __name__ == "__main__":
    sys.exit(main())
