"""A complete part is rewritten as Parquet: the same rows in less than a third of the bytes."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.waiting import until
from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import StateError
from torchloom_core.live.trajectory import sealing
from torchloom_core.live.trajectory.layout import TELEMETRY_SCHEMA, part_paths
from torchloom_core.live.trajectory.reader import EpochRecord, read_epochs
from torchloom_core.live.trajectory.writer import TrajectoryWriter
from torchloom_core.wire.codec import encode_telemetry
from torchloom_core.wire.messages import Telemetry

METRICS = tuple(f"m{number}" for number in range(30))
_END_BYTES = 8
"""How a stream ends that is complete; one that grows has no end."""
EXTREMES = np.array([-(2**63), 2**63 - 1, 0, -1, 1], "<i8")


def a_batch(number: int, worker: str) -> Telemetry:
    values = np.arange(30.0)
    values[0] = number / 7
    values[1:2].view("<u8")[0] = 0x7FF8DEADBEEF0000 + number  # a NaN with a payload
    return Telemetry(
        run="demo",
        worker=worker,
        incarnation=1,
        seq=number,
        state="training",
        step=-1,
        progress_age_s=number / 3,
        metrics=METRICS[: 29 + number % 2],
        ts_ns=EXTREMES[number % 5 :][:1].tobytes(),
        values=values[: 29 + number % 2].astype("<f8").tobytes(),
    )


def write(root: Path, epoch: int = 1, ticks: int = 40) -> TrajectoryWriter:
    writer = TrajectoryWriter(root, "demo", epoch, Config(), {}, 5, part_bytes=1 << 18)
    for number in range(ticks):
        for row in range(50):
            writer.telemetry(encode_telemetry(a_batch(number, f"g{row}-0")), int(EXTREMES[row % 5]))
        writer.flush()
    return writer


def content(record: EpochRecord) -> list[tuple[int, int, bytes]]:
    return [(r.seq, r.ts_recv_ns, encode_telemetry(r.message)) for r in record.inputs()]


def seal_all(folder: Path) -> None:
    for part in sorted(folder.glob("*.arrow")):
        sealing.seal(part)


@pytest.fixture
def unsealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EpochRecord:
    with monkeypatch.context() as context:
        context.setattr(sealing.Sealer, "add", lambda sealer, part: None)
        write(tmp_path).close()
    return read_epochs(tmp_path)[0]


def test_sealed_parts_are_read_bit_for_bit_in_a_third_of_the_bytes(unsealed: EpochRecord) -> None:
    plain = part_paths(unsealed.folder, "telemetry")
    before, size = content(unsealed), sum(path.stat().st_size for path in plain)
    assert {path.suffix for path in plain} == {".arrow"}
    reading = unsealed.inputs()
    next(reading)
    seal_all(unsealed.folder)
    sealed = part_paths(unsealed.folder, "telemetry")
    assert {path.suffix for path in sealed} == {".parquet"}
    assert 3 * sum(path.stat().st_size for path in sealed) < size
    assert content(unsealed) == before
    assert 1 + len(list(reading)) == len(before), "parts that vanish while they are read"
    assert sum(rows.num_rows for rows in unsealed.record_batches(plain)) == len(before)


def test_a_part_with_the_columns_of_format_3_is_read_and_sealed(unsealed: EpochRecord) -> None:
    before = content(unsealed)
    for part in part_paths(unsealed.folder, "telemetry"):
        rows = list(unsealed.record_batches([part]))
        with pa.ipc.new_stream(part, TELEMETRY_SCHEMA) as stream:
            stream.write_table(pa.Table.from_batches(rows).unify_dictionaries())
        part.write_bytes(part.read_bytes()[:-_END_BYTES])
    assert content(unsealed) == before
    seal_all(unsealed.folder)
    assert content(unsealed) == before


@pytest.mark.parametrize(("column", "reason"), [("worker", "missing"), ("values", "samples x")])
def test_a_sealed_part_that_lacks_values_is_refused(
    unsealed: EpochRecord, column: str, reason: str
) -> None:
    first = part_paths(unsealed.folder, "telemetry")[0]
    table = pa.Table.from_batches(unsealed.record_batches([first])).unify_dictionaries()
    none = pa.nulls(1, pa.string()) if column == "worker" else pa.array([[1.0]])
    changed = pa.chunked_array([none.cast(table.schema.field(column).type)])
    kept = table.slice(1)[column].chunks
    at = table.schema.get_field_index(column)
    table = table.set_column(at, column, pa.chunked_array([*changed.chunks, *kept]))
    pq.write_table(table, first.with_suffix(".parquet"))
    with pytest.raises(StateError, match=rf"telemetry-000001.parquet: row 0: .*{reason}"):
        content(unsealed)


@pytest.mark.integration
def test_a_weaver_seals_its_parts_and_what_its_predecessor_left(
    tmp_path: Path, unsealed: EpochRecord
) -> None:
    write(tmp_path, epoch=2).close()
    until(lambda: not list(tmp_path.glob("*/*.arrow")))
    assert [len(content(record)) for record in read_epochs(tmp_path)] == [2000, 2000]


def test_a_part_that_cannot_be_sealed_remains_and_is_named(
    unsealed: EpochRecord,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fill_the_disk(source: object, path: Path) -> None:
        path.write_bytes(b"PAR1")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torchloom_core.live.trajectory.sealed.write", fill_the_disk)
    monkeypatch.setattr("os.nice", lambda _: 0)
    monkeypatch.setattr("sys.argv", ["sealing", *map(str, unsealed.folder.glob("*.arrow"))])
    sealing.main()
    assert {path.suffix for path in unsealed.folder.glob("telemetry-*")} == {".arrow"}
    assert len(content(unsealed)) == 40 * 50
    assert "telemetry-000001.arrow: not sealed" in caplog.text


def test_a_kill_between_the_new_file_and_the_end_of_the_old_one_doubles_nothing(
    unsealed: EpochRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
    seal_all(unsealed.folder)
    assert list(unsealed.folder.glob("*.arrow")), "still there"
    assert len(content(unsealed)) == 40 * 50
