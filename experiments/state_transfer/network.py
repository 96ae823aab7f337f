"""Send a state beside an allreduce over one shaped link, and measure what the steps lose by it.

sudo python experiments/state_transfer/network.py [--mbit 200] [--megabytes 50] [--repeats 3]

Two ranks in two network namespaces, joined by a veth pair; needs root and iproute2.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
NAMES = ("tl-state-0", "tl-state-1")
ADDRESSES = ("10.213.0.1", "10.213.0.2")
PORT, STATE_PORT = 29713, 29714
COMPUTE_S = 0.25
GRADIENT_BYTES = 5_000_000
STEPS = 20
"""Without a transfer, before and after each one."""

RATES = (0.0, 0.5, 0.25, 0.125)
"""Limits of the transfer, as shares of the link; 0: none."""

_PIECE_BYTES = 1 << 16


@contextmanager
def link(mbit: float) -> Iterator[None]:
    """Make the two namespaces, and take them down in the end."""
    take_down()
    try:
        for name in NAMES:
            _ip("netns", "add", name)
        _ip("link", "add", "v0", "netns", NAMES[0], "type", "veth", "peer", "v1", "netns", NAMES[1])
        for number, (name, address) in enumerate(zip(NAMES, ADDRESSES, strict=True)):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", f"v{number}")
            for device in ("lo", f"v{number}"):
                _ip("-n", name, "link", "set", device, "up")
            shaped = ["root", "tbf", "rate", f"{mbit}mbit", "burst", "256k", "latency", "50ms"]
            command = ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", f"v{number}"]
            subprocess.run([*command, *shaped], check=True)
        yield
    finally:
        take_down()


def take_down() -> None:
    """Remove the namespaces, if they are there, and their link with them."""
    for name in NAMES:
        subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def train(rank: int, mbit: float, megabytes: float, repeats: int) -> None:
    """Take steps, and send a state from rank 0 to rank 1 in the middle of some of them."""
    os.environ["GLOO_SOCKET_IFNAME"] = f"v{rank}"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"tcp://{ADDRESSES[0]}:{PORT}", rank=rank, world_size=len(NAMES)
    )
    gradient = torch.zeros(GRADIENT_BYTES // 4)
    if rank == 1:
        threading.Thread(target=_receive, daemon=True).start()
    steps(gradient, 5)
    for share in RATES * repeats:
        before = steps(gradient, STEPS)
        limit = share * mbit * 1e6 / 8
        took_s, count = with_transfer(gradient, rank, megabytes * 1e6, limit)
        after = steps(gradient, STEPS)
        step_s, busy_s = ((a + b) / (2 * STEPS) for a, b in zip(before, after, strict=True))
        if rank == 0:
            lost_s = took_s - count * step_s
            figures = {"limit": share, "step_s": step_s, "busy_s": busy_s, "lost_s": lost_s}
            print(json.dumps({**figures, "steps": count}), flush=True)
    dist.destroy_process_group()


def steps(gradient: torch.Tensor, count: int) -> tuple[float, float]:
    """Return the seconds of so many steps, and those of their allreduces."""
    began_s, wire_s = time.perf_counter(), 0.0
    for _ in range(count):
        wire_s += step(gradient)
    return time.perf_counter() - began_s, wire_s


def step(gradient: torch.Tensor) -> float:
    """Compute, reduce, and return the seconds of that."""
    time.sleep(COMPUTE_S)
    began_s = time.perf_counter()
    dist.all_reduce(gradient)
    return time.perf_counter() - began_s


def with_transfer(
    gradient: torch.Tensor, rank: int, size_bytes: float, limit: float
) -> tuple[float, int]:
    """Take steps until the state is over; return their seconds and their number."""
    sender = threading.Thread(target=_send, args=(size_bytes, limit)) if rank == 0 else None
    began_s, count = time.perf_counter(), 0
    if sender:
        sender.start()
    going = torch.ones(1)
    while going.item():
        step(gradient)
        count += 1
        going[0] = float(sender.is_alive()) if sender else 0.0
        dist.all_reduce(going)
    return time.perf_counter() - began_s, count


def _send(size_bytes: float, limit: float) -> None:
    with socket.create_connection((ADDRESSES[1], STATE_PORT)) as connection:
        began_s, sent = time.perf_counter(), 0
        while sent < size_bytes:
            connection.sendall(bytes(_PIECE_BYTES))
            sent += _PIECE_BYTES
            if limit:
                time.sleep(max(0.0, began_s + sent / limit - time.perf_counter()))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)  # the other side has read all


def _receive() -> None:
    with socket.create_server((ADDRESSES[1], STATE_PORT)) as server:
        while True:
            connection, _ = server.accept()
            with connection:
                while connection.recv(_PIECE_BYTES):
                    pass


def main() -> None:
    """Print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mbit", type=float, default=200.0)
    parser.add_argument("--megabytes", type=float, default=50.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--out", type=Path, default=HERE / "network.json")
    options = parser.parse_args()
    if options.rank is not None:
        train(options.rank, options.mbit, options.megabytes, options.repeats)
        return
    if os.geteuid() or not shutil.which("tc"):
        sys.exit("need root and iproute2 to make network namespaces")
    with link(options.mbit):
        rows = _play(options.mbit, options.megabytes, options.repeats)
    predicted_s = options.megabytes * 8 / options.mbit
    table = Table("limit", "steps", "busy", "lost s", "least", "most", "predicted s")
    for share in RATES:
        of = [row for row in rows if row["limit"] == share]
        busy = sum(row["busy_s"] / row["step_s"] for row in of) / len(of)
        lost = [row["lost_s"] for row in of]
        counted = sum(row["steps"] for row in of) / len(of)
        said = f"{share * options.mbit:g} Mbit/s" if share else "none"
        figures = (sum(lost) / len(lost), min(lost), max(lost), busy * predicted_s)
        table.add_row(said, f"{counted:.0f}", f"{busy:.0%}", *(f"{one:.2f}" for one in figures))
    Console().print(table)
    text = json.dumps(
        {"mbit": options.mbit, "megabytes": options.megabytes, "rows": rows}, indent=1
    )
    options.out.write_text(f"{text}\n", encoding="utf-8")


def _play(mbit: float, megabytes: float, repeats: int) -> list[dict[str, float]]:
    processes = []
    for rank, name in enumerate(NAMES):
        command = ["ip", "netns", "exec", name, sys.executable, __file__, "--rank", str(rank)]
        command += ["--mbit", str(mbit), "--megabytes", str(megabytes), "--repeats", str(repeats)]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    try:
        said = [process.communicate()[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [json.loads(line) for line in said[0].splitlines()]


if __name__ == "__main__":
    main()
