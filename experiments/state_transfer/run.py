"""Measure how far a trained state shrinks without loss, and how fast.

python experiments/state_transfer/run.py [--steps 300] [--megabytes 32] [--out FILE]
"""

import argparse
import json
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

from experiments.compression.training import BATCH, CONTEXT, CharacterModel, corpus
from torchloom_threadlet.demo_trainer import build, shard

HERE = Path(__file__).parent
CHUNK_BYTES = 1 << 20
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Row:
    """One way to pack one part of a state, on one core.

    Attributes
    ----------
    ratio : float
        Bytes before, over bytes after.
    pack_mb_s, unpack_mb_s : float
        MB of the state a second.
    """

    model: str
    part: str
    packing: str
    ratio: float
    pack_mb_s: float
    unpack_mb_s: float


def digits(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Train the demo's model."""
    data = load_digits()
    images = torch.tensor(data.data / 16.0, dtype=torch.float32)
    labels = torch.tensor(data.target)
    model = build(seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(steps):
        rows = shard(step, 0, 1, len(images), 0)
        _step(nn.functional.cross_entropy(model(images[rows]), labels[rows]), optimizer)
    return model, optimizer


def characters(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Train the small transformer of experiments/compression."""
    text, _, count = corpus()
    torch.manual_seed(0)
    model = CharacterModel(count)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(steps):
        starts = torch.randint(len(text) - CONTEXT - 1, (3 * BATCH, 1))
        _step(model.loss(text[starts + torch.arange(CONTEXT + 1)]), optimizer)
    return model, optimizer


def _step(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def parts_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, bytes]]:
    """Yield the whole of what a joiner is given, and then each part of it."""
    parts = {
        "weights": list(model.parameters()),
        "first moment": [state["exp_avg"] for state in optimizer.state.values()],
        "second moment": [state["exp_avg_sq"] for state in optimizer.state.values()],
    }
    raw = {name: b"".join(_bytes(tensor) for tensor in parts[name]) for name in parts}
    yield "all", b"".join(raw.values())
    yield from raw.items()


def _bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().numpy().tobytes())


def shuffled(data: bytes) -> bytes:
    """Return all first bytes of the floats, then all second ones, and so on."""
    return np.frombuffer(data, np.uint8).reshape(-1, FLOAT_BYTES).T.tobytes()


def unshuffled(data: bytes) -> bytes:
    """Undo it."""
    return np.frombuffer(data, np.uint8).reshape(FLOAT_BYTES, -1).T.tobytes()


PACKINGS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "zlib 1": (lambda data: zlib.compress(data, 1), zlib.decompress),
    "shuffle, zlib 1": (
        lambda data: zlib.compress(shuffled(data), 1),
        lambda data: unshuffled(zlib.decompress(data)),
    ),
}


def measure(model: str, part: str, packing: str, data: bytes, megabytes: float) -> Row:
    """Pack and unpack ``data`` in chunks, again and again until there is enough to time."""
    pack, unpack = PACKINGS[packing]
    chunks = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
    rounds = max(1, round(megabytes * 1e6 / len(data)))
    began_s = time.perf_counter()
    for _ in range(rounds):
        packed = [pack(chunk) for chunk in chunks]
    packed_s = time.perf_counter()
    for _ in range(rounds):
        back = [unpack(chunk) for chunk in packed]
    ended_s = time.perf_counter()
    if b"".join(back) != data:
        raise AssertionError(f"{packing} of {part} of {model} is not without loss")
    size_mb = len(data) * rounds / 1e6
    return Row(
        model=model,
        part=part,
        packing=packing,
        ratio=len(data) / sum(map(len, packed)),
        pack_mb_s=size_mb / (packed_s - began_s),
        unpack_mb_s=size_mb / (ended_s - packed_s),
    )


def main() -> None:
    """Print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--megabytes", type=float, default=32.0, help="to time each packing with")
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        measure(name, part, packing, data, options.megabytes)
        for name, train in (("digits", digits), ("characters", characters))
        for part, data in parts_of(*train(options.steps))
        for packing in PACKINGS
    ]
    table = Table("model", "part", "packing", "ratio", "packs MB/s", "unpacks MB/s")
    for row in rows:
        speeds = (f"{row.pack_mb_s:.0f}", f"{row.unpack_mb_s:.0f}")
        table.add_row(row.model, row.part, row.packing, f"{row.ratio:.2f}", *speeds)
    Console().print(table)
    text = json.dumps({"steps": options.steps, "rows": [asdict(row) for row in rows]}, indent=1)
    options.out.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
