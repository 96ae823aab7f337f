"""Allreduce over links that differ: in torchft's order, in random ones, and in a chosen one.

    python experiments/allreduce/uneven.py [--ranks 8] [--orders 5] [--mb 4] [--seed 1]

Each pair of ranks has its own rate, determined by a seed. Groups of plain gloo in each order reduce
the same payload. The tuner's solver chooses one order, which is compared with the best of all
orders, for up to nine ranks.
"""

import argparse
import itertools
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.distributed import (  # type: ignore[attr-defined]
    PrefixStore,
    ProcessGroupGloo,
    TCPStore,
)

from experiments.allreduce.lab import or_exit
from torchloom_core.demos.bandwidth.namespaces import (
    BURST_BYTES,
    CONTROL,
    DATA,
    Lab,
    run_batch,
)
from torchloom_core.plugin import PluginError
from torchloom_policies.allreduce.ring_order import RingSolver

HERE = Path(__file__).parent
STORE_PORT = 29400
TIMEOUT = timedelta(seconds=300)
LATENCY_S = 3e-4
"""From one rank to the next without a queue, measured here: alpha."""

LEAST_MBIT, MOST_MBIT = 20.0, 400.0

Matrix = list[list[float]]
Order = tuple[int, ...]


@dataclass(frozen=True)
class Tried:
    """One order: median and predicted time of an allreduce, s, and its slowest link, Mbit/s."""

    name: str
    order: Order
    bottleneck_mbit: float
    predicted_s: float
    measured_s: float


def uneven_matrix(ranks: int, seed: int) -> Matrix:
    """Return rates that are evenly spread on a logarithmic scale."""
    rng = random.Random(seed)
    ratio = MOST_MBIT / LEAST_MBIT
    return [
        [0.0 if i == j else LEAST_MBIT * ratio ** rng.random() for j in range(ranks)]
        for i in range(ranks)
    ]


def bottleneck(matrix: Matrix, order: Order) -> float:
    """Return the rate of a ring's slowest link; in gloo each rank sends to the one before.

    That is so in gloo's allreduce.cc: ``sendRank = rank - 1``, ``recvRank = rank + 1``.
    """
    return min(matrix[j][i] for i, j in zip(order, (*order[1:], order[0]), strict=True))


def predicted_s(matrix: Matrix, order: Order, payload_bytes: int) -> float:
    """Return a ring allreduce's time: all links carry alike much, so the slowest sets the pace."""
    ranks = len(order)
    sent_bytes = 2 * (ranks - 1) / ranks * payload_bytes
    return 2 * (ranks - 1) * LATENCY_S + sent_bytes * 8e-6 / bottleneck(matrix, order)


def best_order(matrix: Matrix) -> Order:
    """Return the order whose slowest link is fastest, by trying all of them: up to 9 ranks."""
    others = range(1, len(matrix))
    return max(
        ((0, *order) for order in itertools.permutations(others)),
        key=lambda order: bottleneck(matrix, order),
    )


def chosen_order(matrix: Matrix) -> Order:
    """Return the order that the tuner's solver chooses, each rank sending to the one before it."""
    search = RingSolver().search(np.array(matrix) * 1e6 / 8, np.zeros((len(matrix), len(matrix))))
    while True:
        try:
            next(search)
        except StopIteration as ended:
            return tuple(reversed(ended.value.order))


def set_pairs(lab: Lab, mbit: Matrix) -> None:
    """Set the bandwidth of each pair of ranks: ``mbit[i][j]`` from i to j, Mbit/s."""
    for rank in range(lab.ranks):
        lines = [
            f"qdisc replace dev {DATA} root noqueue",
            f"qdisc replace dev {DATA} root handle 1: htb",
        ]
        for other in range(lab.ranks):
            if other == rank:
                continue
            number = f"1:{other + 16:x}"
            kbit = round(mbit[rank][other] * 1000)
            lines += [
                f"class add dev {DATA} parent 1: classid {number} htb rate {kbit}kbit "
                f"ceil {kbit}kbit burst {BURST_BYTES} cburst {BURST_BYTES} quantum 3000",
                f"filter add dev {DATA} parent 1: protocol ip prio 1 u32 match ip dst "
                f"{lab.address(other)}/32 flowid {number}",
            ]
        run_batch("tc", lab.namespace(rank), lines)


def measure(
    lab: Lab, matrix: Matrix, payload_bytes: int, repeats: int, orders: int, seed: int
) -> list[Tried]:
    """Reduce in the default order, in random ones and the chosen one, on links as in ``matrix``."""
    set_pairs(lab, matrix)
    rng = random.Random(seed)
    ranks = range(lab.ranks)
    drawn = [(f"random {n + 1}", tuple(rng.sample(ranks, lab.ranks))) for n in range(orders)]
    named = [("default", tuple(ranks)), *drawn, ("chosen", chosen_order(matrix))]
    times = _run(lab, [order for _, order in named], payload_bytes, repeats)
    return [
        Tried(
            name,
            order,
            bottleneck(matrix, order),
            predicted_s(matrix, order, payload_bytes),
            statistics.median(measured),
        )
        for (name, order), measured in zip(named, times, strict=True)
    ]


def _run(lab: Lab, orders: list[Order], payload_bytes: int, repeats: int) -> list[list[float]]:
    task = json.dumps(
        {"orders": orders, "bytes": payload_bytes, "repeats": repeats, "ranks": lab.ranks}
    )
    variables = [f"{name}={value}" for name, value in lab.environment().items()]
    module = ["env", *variables, sys.executable, "-m", "experiments.allreduce.uneven"]
    started = [
        subprocess.Popen(
            lab.inside(rank, [*module, "--rank", str(rank), "--first", lab.address(0, CONTROL)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(lab.ranks)
    ]
    try:
        for process in started:
            assert process.stdin is not None
            process.stdin.write(task)
            process.stdin.close()
        assert started[0].stdout is not None
        text = started[0].stdout.read()
        for process in started:
            if process.wait(TIMEOUT.total_seconds()):
                raise RuntimeError(f"a rank has ended with {process.returncode}")
    finally:
        for process in started:
            process.kill()
            process.wait()
    found: list[list[float]] = json.loads(text)
    return found


def reduce_as(rank: int, first: str) -> None:
    """Run one rank: read the task and reduce; rank 0 writes the time of the slowest rank."""
    args = json.load(sys.stdin)
    torch.set_num_threads(1)
    store = TCPStore(first, STORE_PORT, is_master=rank == 0, wait_for_workers=False)
    found = []
    for number, order in enumerate(args["orders"]):
        prefix = PrefixStore(str(number), store)
        group = ProcessGroupGloo(prefix, order.index(rank), args["ranks"], TIMEOUT)
        payload = torch.ones(args["bytes"] // 4)
        times = []
        for _ in range(args["repeats"] + 1):
            group.allreduce([torch.zeros(1)]).wait()
            began = time.perf_counter()
            group.allreduce([payload]).wait()
            times.append(time.perf_counter() - began)
        found.append(times[1:])  # the first makes the connections fast
    store.set(f"times {rank}", json.dumps(found))
    if rank == 0:
        ranks = [json.loads(store.get(f"times {other}")) for other in range(args["ranks"])]
        slowest = [
            [max(times) for times in zip(*repeats, strict=True)]
            for repeats in zip(*ranks, strict=True)
        ]
        print(json.dumps(slowest))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--orders", type=int, default=5, help="random ones")
    parser.add_argument("--mb", type=float, default=4.0, help="of the payload")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "uneven.json")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--first", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.rank is not None:
        reduce_as(args.rank, args.first)
        return 0
    matrix = uneven_matrix(args.ranks, args.seed)
    try:
        RingSolver()
    except PluginError as error:
        print(error, file=sys.stderr)
        return 2
    payload_bytes = round(args.mb * 1e6)
    with or_exit(), Lab(args.ranks, "uneven") as lab:
        rows = measure(lab, matrix, payload_bytes, args.repeats, args.orders, args.seed)
    table = Table("order", "slowest link, Mbit/s", "predicted, s", "measured, s", "error")
    for row in rows:
        error = f"{row.measured_s / row.predicted_s - 1:+.1%}"
        table.add_row(
            f"{row.name}: {' '.join(map(str, row.order))}",
            f"{row.bottleneck_mbit:.0f}",
            f"{row.predicted_s:.3f}",
            f"{row.measured_s:.3f}",
            error,
        )
    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print(table)
    most = bottleneck(matrix, best_order(matrix))
    exact = math.isclose(rows[-1].bottleneck_mbit, most)
    word = "met" if exact else "not met"
    console.print(f"{word}: its slowest link is the fastest of all orders', {most:.1f} Mbit/s")
    ours = rows[-1].measured_s
    random_s = statistics.median(row.measured_s for row in rows if row.name.startswith("random"))
    near = abs(ours / rows[-1].predicted_s - 1) <= 0.1
    console.print(f"{'met' if near else 'not met'}: within 10 % of the prediction")
    gain = random_s / ours
    word = "met" if gain >= 1.5 else "not met"
    console.print(f"{word}: {gain:.2f} times as fast as the median random order, need 1.5")
    written = {"matrix_mbit": matrix, "bytes": payload_bytes, "rows": [asdict(row) for row in rows]}
    args.out.write_text(json.dumps(written, indent=1) + "\n")
    return 0 if exact and near and gain >= 1.5 else 1


if __name__ == "__main__":
    sys.exit(main())
