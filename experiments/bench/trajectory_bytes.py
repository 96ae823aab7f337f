"""Bytes of the trajectory per worker and second: a part as it is written, as columns, and sealed.

``python experiments/bench/trajectory_bytes.py [EPOCH_FOLDER ...]`` prints them for a made-up fleet,
or for the telemetry of recorded epochs.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import fleet
import numpy as np
import pyarrow as pa
from figure import Figure, medians
from msgspec.structs import replace

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.trajectory import sealing
from torchloom_core.live.trajectory.layout import TELEMETRY_SCHEMA, part_paths
from torchloom_core.live.trajectory.reader import EpochRecord, read_epochs
from torchloom_core.live.trajectory.writer import TrajectoryWriter
from torchloom_core.plugin import Floats
from torchloom_core.wire.codec import encode_telemetry
from torchloom_core.wire.messages import Telemetry

_START_NS = 1_764_454_588 * SECOND_NS
_RATIO = 1 / 3
_METRICS = len(fleet.METRICS)

Second = list[tuple[int, Telemetry]]
"""Batches with the time they were received."""


async def measure(repeats: int, *, tiny: bool) -> list[Figure]:
    """Write the same batches, and seal them; ``noise`` has no two equal digits to find."""
    workers, seconds = (50, 5) if tiny else (1000, 60)
    figures = []
    for name, make in (("bytes", plausible), ("bytes_noise", _noise)):
        rows = []
        for repeat in range(repeats):
            rng = np.random.default_rng(repeat)
            rows.append(_sizes(_seconds(rng, workers, make(rng, workers, seconds))))
        values = name.partition("_")[2] or "fleet"
        what = f"bytes of a sealed part / of its columns as a stream, {values}"
        ratios = [row["sealed_bytes"] / row["stream_bytes"] for row in rows]
        figures.append(Figure(name, what, _RATIO, "at most", ratios, medians(rows)))
    return figures


def plausible(rng: np.random.Generator, workers: int, seconds: int) -> Floats:
    """Return ``(seconds, workers, metrics)`` with the digits that their sources have."""
    shape = (seconds, workers)

    def clocked(mean_s: float) -> Floats:  # the difference of two readings of a monotonic clock
        begin = 1e5 + np.cumsum(rng.uniform(0.9, 1.1, shape), axis=0)
        return (begin + rng.normal(mean_s, 0.02 * mean_s, shape)) - begin

    def stepped(step: float, mean: float, spread: float) -> Floats:  # a sensor's resolution
        return np.asarray(np.round(rng.normal(mean, spread, shape) / step) * step)

    def counted(share: float) -> Floats:  # errors: nearly always as before
        start = rng.integers(0, 1000, workers)
        return np.asarray(start + np.cumsum(rng.random(shape) < share, axis=0), dtype=float)

    def rate(mean: float) -> Floats:  # a count over a measured interval
        return np.round(rng.normal(mean, 0.1 * mean, shape)) / rng.uniform(0.99, 1.01, shape)

    step_s = clocked(0.9)
    of = {
        **{m: clocked(0.2) for m in fleet.METRICS if m.endswith("_s") and "_per_s" not in m},
        **{m: counted(0.001) for m in fleet.METRICS if m.endswith("_total")},
        **{m: rate(1e9) for m in fleet.METRICS if m.endswith("bytes_per_s")},
        "step_time_s": step_s,
        "loss": rng.normal(2.5, 0.05, shape).astype(np.float32).astype(float),
        "grad_norm": rng.normal(1.0, 0.1, shape).astype(np.float32).astype(float),
        "tokens_per_s": 65536 / step_s,
        "gpu_temp_celsius": stepped(1.0, 60.0, 3.0),
        "hbm_temp_celsius": stepped(1.0, 70.0, 3.0),
        "cpu_temp_celsius": stepped(1.0, 50.0, 2.0),
        "gpu_power_watts": stepped(0.001, 550.0, 20.0),
        "gpu_util_ratio": stepped(0.01, 0.95, 0.02),
        "cpu_util_ratio": stepped(0.001, 0.2, 0.02),
        "load_average": stepped(0.01, 20.0, 1.0),
        "gpu_clock_hz": stepped(15e6, 1.98e9, 5e6),
        "gpu_memory_bytes": np.full(shape, 70.0 * 2**30),
        "memory_bytes": stepped(4096.0, 2e11, 1e8),
        "swap_bytes": np.zeros(shape),
    }
    return np.stack([of[metric] for metric in fleet.METRICS], axis=2)


def _noise(rng: np.random.Generator, workers: int, seconds: int) -> Floats:
    return rng.normal(1.0, 0.02, (seconds, workers, _METRICS))


def _seconds(rng: np.random.Generator, workers: int, values: Floats) -> Iterable[Second]:
    """Yield the batches of each second: of each worker one, of one sample, in any order."""
    names = fleet.names(workers)
    phase_ns = rng.integers(0, SECOND_NS, workers)
    template = fleet.batch(names[0], values[0, :1])
    for number, table in enumerate(values):
        ts_ns = _START_NS + number * SECOND_NS + phase_ns + rng.integers(0, 2_000_000, workers)
        delay_ns = rng.integers(200_000, 2_000_000, workers)
        ages_s = rng.random(workers)
        yield [
            (
                int(ts_ns[row] + delay_ns[row]),
                replace(
                    template,
                    worker=names[row],
                    incarnation=1_764_454_000_000 + int(row),
                    seq=number,
                    step=number,
                    progress_age_s=float(1e5 + ages_s[row]) - 1e5,
                    ts_ns=ts_ns[row].tobytes(),
                    values=table[row].tobytes(),
                ),
            )
            for row in np.argsort(ts_ns + delay_ns)
        ]


def _sizes(seconds: Iterable[Second]) -> dict[str, float]:
    """Record the batches; return bytes and microseconds per batch, unsealed and sealed."""
    with tempfile.TemporaryDirectory(prefix="torchloom-bench-") as folder:
        root = Path(folder)
        with mock.patch.object(sealing.Sealer, "add"):  # sealed below
            writer = TrajectoryWriter(root, fleet.RUN, 1, fleet.config(), {}, _START_NS)
        written: list[tuple[int, bytes]] = []
        for second in seconds:
            for ts_recv_ns, batch in second:
                writer.telemetry(encode_telemetry(batch), ts_recv_ns)
                written.append((ts_recv_ns, encode_telemetry(batch)))
            writer.flush()
        writer.close()
        (record,) = read_epochs(root)
        unsealed_bytes, stream_bytes = _telemetry_bytes(record), _stream_bytes(record)
        started_s = time.process_time()
        for part in part_paths(record.folder, "telemetry"):
            sealing.seal(part)
        sealed_s = time.process_time() - started_s
        read = [(r.ts_recv_ns, encode_telemetry(r.message)) for r in record.inputs()]
        if read != written:
            raise RuntimeError("what is read differs from what was written")
        return {
            "unsealed_bytes": unsealed_bytes / len(written),
            "stream_bytes": stream_bytes / len(written),
            "sealed_bytes": _telemetry_bytes(record) / len(written),
            "seal_us": 1e6 * sealed_s / len(written),
        }


def _stream_bytes(record: EpochRecord) -> int:
    """Return the bytes that format 3 took before it was sealed: columns instead of messages."""
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.MockOutputStream() as sink:
        with pa.ipc.new_stream(sink, TELEMETRY_SCHEMA, options=options) as stream:
            for rows in record.record_batches():
                stream.write_batch(rows)
        return int(sink.size())


def _telemetry_bytes(record: EpochRecord) -> int:
    return sum(path.stat().st_size for path in part_paths(record.folder, "telemetry"))


def _recorded(folder: Path) -> Iterable[Second]:
    """Yield what an epoch recorded, as it was flushed: tick by tick."""
    second: Second = []
    for _, ts_recv_ns, message, _ in EpochRecord(folder).inputs():
        if isinstance(message, Telemetry):
            second.append((ts_recv_ns, message))
        elif second:
            yield second
            second = []
    yield second


def main() -> None:
    """Print the sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("epochs", nargs="*", type=Path, metavar="EPOCH_FOLDER")
    epochs = parser.parse_args().epochs
    if not epochs:
        for figure in asyncio.run(measure(1, tiny=False)):
            print(figure.name, {name: round(n, 1) for name, n in figure.numbers.items()})
    for folder in epochs:
        print(folder, {name: round(n, 1) for name, n in _sizes(_recorded(folder)).items()})


if __name__ == "__main__":
    main()
