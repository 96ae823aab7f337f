"""Restore one state from a peer's memory, by torchft, from disk and from S3, side by side."""

import argparse
import json
import os
import queue
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.distributed import TCPStore
from torch.distributed.checkpoint.state_dict_loader import load
from torchft.checkpointing.http_transport import HTTPTransport
from torchft.checkpointing.pg_transport import PGTransport

from experiments.bench.machine import with_torch
from experiments.restore_speed.peer import CHUNKS, TIMEOUT, group_of
from experiments.restore_speed.state import FOLDER, SEED, STEP, make, save
from torchloom_core.checkpoints.object_store import ObjectStore
from torchloom_core.checkpoints.storage import LocalFolder, Storage
from torchloom_core.checkpoints.stored import Checkpoint
from torchloom_threadlet.checkpoint.dcp_reader import CheckpointReader
from torchloom_threadlet.checkpoint.node_store.address import (
    read_record,
    start_store,
    store_folder,
)
from torchloom_threadlet.checkpoint.node_store.client import StoreClient

HERE = Path(__file__).parent
HOST = "127.0.0.1"
PEER, HTTP, REMOTE = "peer's memory", f"torchft HTTP, {CHUNKS} chunks", "S3 (moto)"
GROUP, COLD, WARM = "torchft PG, in place", "disk, cold", "disk, warm"
FASTER = 5.0
RESAMPLES = 2000
State = dict[str, torch.Tensor]


@contextmanager
def node_memory(state: State, node: str) -> Iterator[StoreClient]:
    """Give the memory of a node that has the checkpoint."""
    folder = store_folder(f"restore_speed {os.getpid()}", node)
    client = StoreClient(start_store(folder, HOST), node)
    save(client, state)
    try:
        yield client
    finally:
        if (record := read_record(folder)) is not None:
            with suppress(ProcessLookupError):
                os.kill(record.pid, signal.SIGTERM)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def s3(state: State) -> Iterator[Storage]:
    """Give a bucket that has the checkpoint, of a server in a process of its own."""
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    url = f"http://{HOST}:{port}"
    code = f"from moto.server import main; main(['-H', '{HOST}', '-p', '{port}'])"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.environ |= {
        "AWS_ENDPOINT_URL_S3": url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        end_s = time.monotonic() + 60
        while True:
            with suppress(OSError):
                request = urllib.request.Request(f"{url}/bucket", method="PUT")
                urllib.request.urlopen(request).close()
                break
            if time.monotonic() > end_s:
                raise TimeoutError("the S3 server did not start")
            time.sleep(0.1)
        bucket = ObjectStore("s3://bucket/run")
        save(bucket, state)
        yield bucket
    finally:
        process.kill()
        process.wait()


@contextmanager
def peer(megabytes: int) -> Iterator[tuple[subprocess.Popen[str], str, PGTransport[State], State]]:
    """Give a sender of torchft's: its process, address, transport, and where that writes to."""
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    address = f"{HOST}:{store.port}/restore/1"
    command = [sys.executable, "-m", "experiments.restore_speed.peer", str(megabytes), address]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a line for each request
        text=True,
    )
    try:
        http = (process.stdout.readline() if process.stdout else "").strip()
        group, into = group_of(address, 1), zeros(make(megabytes))
        transport = PGTransport(group, TIMEOUT, torch.device("cpu"), state_dict=lambda: into)
        yield process, http, transport, into
        del group
    finally:
        process.kill()
        process.wait()


def zeros(state: State) -> State:
    """Return tensors to restore into, their memory touched."""
    return {name: torch.zeros_like(tensor) for name, tensor in state.items()}


def restore(sources: Sequence[Storage], into: State) -> Checkpoint:
    """Restore as a run does that begins: each byte against its digest."""
    checkpoint = Checkpoint(sources, FOLDER)
    load(dict(into), storage_reader=CheckpointReader(checkpoint), no_dist=True)
    return checkpoint


def forget_pages(folder: LocalFolder) -> None:
    """Have the next read come from the disk."""
    for path in (folder.path / FOLDER).iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(state: State, megabytes: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each way in each round; a first round is not counted."""
    seconds: dict[str, list[float]] = {}

    def timed(way: str, get: Callable[[State], State | None]) -> None:
        into = zeros(state)
        begun_s = time.perf_counter()
        found = get(into) or into
        seconds.setdefault(way, []).append(time.perf_counter() - begun_s)
        if any(not torch.equal(state[name], found[name]) for name in state):
            raise AssertionError(f"{way}: need the state as it was saved, was another")

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=HERE))
        disk = LocalFolder(Path(folder))
        save(disk, state)
        memory = stack.enter_context(node_memory(state, "n1"))
        bucket = stack.enter_context(s3(state))
        process, address, transport, into_group = stack.enter_context(peer(megabytes))
        receiver: HTTPTransport[State] = HTTPTransport(TIMEOUT, num_chunks=CHUNKS)

        def by_group(_: State) -> State:
            if process.stdin:
                process.stdin.write("\n")
                process.stdin.flush()
            return transport.recv_checkpoint(0, "", STEP)

        ways: list[tuple[str, Callable[[State], State | None]]] = [
            (PEER, lambda into: restore([memory], into) and None),
            (HTTP, lambda _: receiver.recv_checkpoint(0, address, STEP, TIMEOUT)),
            (GROUP, by_group),
            (COLD, lambda into: restore([disk], into) and None),
            (WARM, lambda into: restore([disk], into) and None),
            (REMOTE, lambda into: restore([bucket], into) and None),
        ]
        draw_order = random.Random(SEED)
        for _ in track(range(rounds + 1), "restoring"):
            for way, get in draw_order.sample(ways, len(ways)):  # what came before has the caches
                if way == GROUP:
                    for tensor in into_group.values():
                        tensor.zero_()
                if way == COLD:
                    forget_pages(disk)
                timed(way, get)
        receiver.shutdown(wait=False)
    return {way: all_s[1:] for way, all_s in seconds.items()}


def interval_of_ratio(over: list[float], under: list[float]) -> tuple[float, float]:
    """Return the 90 % bootstrap interval of the ratio of two medians."""
    draw = random.Random(SEED)
    ratios = sorted(
        statistics.median(draw.choices(over, k=len(over)))
        / statistics.median(draw.choices(under, k=len(under)))
        for _ in range(RESAMPLES)
    )
    return ratios[RESAMPLES // 20], ratios[-RESAMPLES // 20]


class Dying(StoreClient):
    """A node's memory that is lost once so many pieces were received."""

    pieces = 0
    dies_after = 16
    pids: queue.SimpleQueue[int]

    def fetch(self, name: str, at: int, view: memoryview) -> int:
        """Receive a piece, if the store still runs."""
        if self.pieces >= self.dies_after:
            with suppress(queue.Empty):
                os.kill(self.pids.get_nowait(), signal.SIGKILL)
        count = super().fetch(name, at, view)
        self.pieces += count == len(view)
        return count


def lose_the_sender(state: State) -> dict[str, float | int | bool]:
    """Kill the store from which a state is received, and go on from another node's."""
    with node_memory(state, "n1") as first, node_memory(state, "n2") as second:
        dying = Dying(first.address, "n1")
        dying.pieces = -2  # the manifest and the shard
        record = read_record(store_folder(f"restore_speed {os.getpid()}", "n1"))
        dying.pids = queue.SimpleQueue()
        if record is not None:
            dying.pids.put(record.pid)
        into = zeros(state)
        begun_s = time.perf_counter()
        checkpoint = restore([dying, second], into)
        took_s = time.perf_counter() - begun_s
        is_equal = all(torch.equal(state[name], into[name]) for name in state)
    return {
        "seconds": took_s,
        "from_the_first": dying.pieces,
        "passed_over": len(checkpoint.passed_over),
        "is_equal": is_equal,
    }


def draw(seconds: dict[str, list[float]], megabytes: int, path: Path) -> None:
    """Draw the median of each way, and the range."""
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    ways = sorted(seconds, key=lambda way: -statistics.median(seconds[way]))
    medians = [statistics.median(seconds[way]) for way in ways]
    ends = [[m - min(seconds[w]) for m, w in zip(medians, ways, strict=True)],
            [max(seconds[w]) - m for m, w in zip(medians, ways, strict=True)]]  # fmt: skip
    colours = ["C0" if way == PEER else "0.7" for way in ways]
    axes.barh(ways, medians, xerr=ends, color=colours, capsize=3)
    axes.set_xscale("log")
    axes.set_xlabel(f"seconds to restore {megabytes} MB (median and range)")
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="20 MB, 2 rounds; writes nothing")
    args = parser.parse_args()
    megabytes, rounds = (20, 2) if args.quick else (args.megabytes, args.rounds)

    warnings.simplefilter("ignore")  # torch's and torchft's
    state = make(megabytes)
    seconds = measure(state, megabytes, rounds)
    lost = lose_the_sender(state)
    table = Table("from", "ms", "range", "MB/s")
    for way, all_s in seconds.items():
        median_s = statistics.median(all_s)
        between = f"{1e3 * min(all_s):.0f} to {1e3 * max(all_s):.0f}"
        table.add_row(way, f"{1e3 * median_s:.0f}", between, f"{megabytes / median_s:.0f}")
    Console().print(table)
    print("the sender died:", json.dumps(lost))
    medians = {way: statistics.median(all_s) for way, all_s in seconds.items()}
    over_remote, over_http = medians[REMOTE] / medians[PEER], medians[HTTP] / medians[PEER]
    low, high = interval_of_ratio(seconds[HTTP], seconds[PEER])
    print(
        f"{over_remote:.1f} times as fast as S3, {over_http:.2f} [{low:.2f} to {high:.2f}] times "
        "as fast as torchft's HTTP"
    )
    if not args.quick:
        found = {"machine": with_torch(), "megabytes": megabytes, "seconds": seconds, "lost": lost}
        (HERE / "results.json").write_text(json.dumps(found, indent=1) + "\n")
        draw(seconds, megabytes, HERE / "restore_speed.png")
    holds = over_remote >= FASTER and high >= 1 and bool(lost["is_equal"])
    print("within the bars" if holds else "beyond a bar")
    return int(not holds)


if __name__ == "__main__":
    sys.exit(main())
