"""A crash costs at most what was not flushed; damage is named; a full disk is a gap."""

import itertools
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import StateError
from torchloom_core.live.trajectory.layout import PartKind, newest_epoch, part_paths
from torchloom_core.live.trajectory.reader import Recorded, read_epochs
from torchloom_core.live.trajectory.writer import TrajectoryWriter
from torchloom_core.wire.codec import encode_telemetry
from torchloom_core.wire.decisions import Notice
from torchloom_core.wire.events import RecordingGap, Tick
from torchloom_core.wire.limits import MAX_COUNT
from torchloom_core.wire.messages import Telemetry

NOTICES = [Notice(kind="note", text="one"), Notice(kind="note", text="two")]


def a_batch(number: int) -> Telemetry:
    return Telemetry(
        run="demo",
        worker=f"g{number}-0",
        incarnation=1,
        seq=number,
        state="training",
        step=-1,
        progress_age_s=0.5,
        metrics=("loss", f"m{number}"),
        ts_ns=np.full(4, -1, "<i8").tobytes(),
        values=np.arange(8, dtype="<f8").tobytes(),
    )


def write_epoch(root: Path, epoch: int = 1) -> list[Recorded]:
    """Six inputs, each flushed separately: even ones telemetry, odd ones ticks."""
    writer = TrajectoryWriter(root, "demo", epoch, Config(), {}, 5)
    for number in range(1, 7):
        if number % 2:
            writer.event(Tick(), number, NOTICES)
        else:
            writer.telemetry(encode_telemetry(a_batch(number)), number)
        writer.flush()
    writer.close()
    return list(read_epochs(root)[-1].inputs())


def read(root: Path) -> list[Recorded]:
    return list(read_epochs(root)[0].inputs())


def only_part(root: Path, kind: PartKind) -> Path:
    (path,) = part_paths(read_epochs(root)[0].folder, kind)
    return path


def opens_by_itself(path: Path) -> None:
    if path.suffix == ".jsonl":
        pd.read_json(path, lines=True)
    elif path.suffix == ".parquet":
        pd.read_parquet(path)
    else:
        with pa.OSFile(str(path)) as file:
            pa.ipc.open_stream(file).read_pandas()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "last"), [("events", 5), ("telemetry", 6)])
def test_a_record_torn_at_any_byte_is_skipped_and_repaired(
    kind: PartKind, last: int, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    whole = write_epoch(root)
    assert [recorded.seq for recorded in whole] == [1, 2, 3, 4, 5, 6]
    path = only_part(root, kind)
    data = path.read_bytes()
    if kind == "events":
        begins = len(b"".join(data.splitlines(keepends=True)[:-3]))
        other = only_part(root, "telemetry")
        other.write_bytes(_without_last_record_batch(other.read_bytes()))
    else:
        begins = len(_without_last_record_batch(data))
    for cut in {*range(begins, len(data), 5), *range(begins, begins + 9), len(data) - 1}:
        path.write_bytes(data[:cut])
        assert read(root) == whole[: last - 1], cut
        later = TrajectoryWriter(root, "demo", 2, Config(), {}, 5)
        later.close()
        opens_by_itself(path)
        assert read(root) == whole[: last - 1], cut
        shutil.rmtree(later.folder)


def _without_last_record_batch(data: bytes) -> bytes:
    source = pa.BufferReader(data)
    ends = []
    while source.tell() < len(data):
        if pa.ipc.read_message(source).type == "record batch":
            ends.append(source.tell())
    return data[: ends[-2]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["events", "telemetry"])
def test_a_file_without_a_complete_record_is_removed(kind: PartKind, tmp_path: Path) -> None:
    writer = TrajectoryWriter(tmp_path, "demo", 1, Config(), {}, 5)
    if kind == "events":
        writer.event(Tick(), 1, ())
    else:
        writer.telemetry(encode_telemetry(a_batch(1)), 1)
    writer.close()
    path = only_part(tmp_path, kind)
    data = path.read_bytes()
    for cut in range(0, len(data), 16):
        path.write_bytes(data[:cut])
        assert read(tmp_path) == []
        TrajectoryWriter(tmp_path, "demo", 2 + cut, Config(), {}, 5).close()
        assert not path.exists()


def test_the_record_of_a_running_weaver_is_not_repaired(tmp_path: Path) -> None:
    old = TrajectoryWriter(tmp_path, "demo", 1, Config(), {}, 5)
    old.event(Tick(), 1, NOTICES)
    old.flush()
    (path,) = part_paths(old.folder, "events")
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    TrajectoryWriter(tmp_path, "demo", 2, Config(), {}, 5).close()
    assert path.read_bytes() == data[:-1]
    old.close()


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.parametrize("delay_flushes", [1, 7, 60])
def test_kill_9_in_the_middle_of_writing_loses_nothing_that_was_flushed(
    delay_flushes: int, tmp_path: Path
) -> None:
    script = Path(__file__).with_name("endless_writer.py")
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in itertools.islice(process.stdout, delay_flushes):
            flushed = int(line)
        process.kill()
        rest = process.stdout.read().splitlines()
    flushed = int(rest[-1]) if rest and rest[-1].isdigit() else flushed
    for epoch in (2, 3):
        recorded = read(tmp_path)
        assert [r.seq for r in recorded] == list(range(1, len(recorded) + 1))
        assert len(recorded) >= flushed
        for seq, ts_ns, message, outputs in recorded:
            assert ts_ns == seq
            if isinstance(message, Telemetry):
                assert message.seq == seq
                assert np.array_equal(np.frombuffer(message.values), np.full(200, float(seq)))
            else:
                assert len(outputs) == seq % 5
        TrajectoryWriter(tmp_path, "demo", epoch, Config(), {}, 5).close()
        for kind in ("events", "telemetry"):
            for path in part_paths(read_epochs(tmp_path)[0].folder, kind):
                try:
                    opens_by_itself(path)
                except FileNotFoundError:  # sealed meanwhile
                    opens_by_itself(path.with_suffix(".parquet"))


def flip_in_second_line(data: bytes) -> bytes:
    lines = data.split(b"\n")
    lines[1] = lines[1].replace(b'"n":1', b'"n"?1')
    return b"\n".join(lines)


def drop_second_line(data: bytes) -> bytes:
    lines = data.split(b"\n")
    return b"\n".join(lines[:1] + lines[2:])


def drop_fourth_line_on(data: bytes) -> bytes:
    return b"\n".join(data.split(b"\n")[:3]) + b"\n"


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (flip_in_second_line, r"events-000001.jsonl:2: JSON is malformed"),
        (drop_second_line, r"events-000001.jsonl:2: need output 1.1, was 1.2"),
        (drop_fourth_line_on, r"epoch-000001: input 3 is missing before 4"),
    ],
)
def test_damage_in_the_middle_of_the_events_is_named(
    damage: Callable[[bytes], bytes], error: str, tmp_path: Path
) -> None:
    write_epoch(tmp_path)
    path = only_part(tmp_path, "events")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StateError, match=error):
        read(tmp_path)


def test_damage_in_the_middle_of_the_telemetry_is_named(tmp_path: Path) -> None:
    whole = write_epoch(tmp_path)
    path = only_part(tmp_path, "telemetry")
    data = path.read_bytes()
    source = pa.BufferReader(data)
    starts = []
    while source.tell() < len(data):
        start = source.tell()
        if pa.ipc.read_message(source).type == "record batch":
            starts.append(start)
    second = starts[1]
    for byte, value in ((0, 0x00), (4, 0xF0), (6, 0x7F), (8, 0xFF)):
        broken = bytearray(data)
        broken[second + byte] = value
        path.write_bytes(broken)
        with pytest.raises(StateError, match=r"telemetry-000001.arrow: row 1: "):
            read(tmp_path)
        TrajectoryWriter(tmp_path, "demo", 10 + byte, Config(), {}, 5).close()
        assert path.read_bytes() == broken, "damaged files are evidence"
    path.write_bytes(data)
    assert read(tmp_path) == whole


def test_a_torn_part_that_is_not_the_last_is_damage(tmp_path: Path) -> None:
    writer = TrajectoryWriter(tmp_path, "demo", 1, Config(), {}, 5, part_bytes=1)
    for number in (1, 2):
        writer.telemetry(encode_telemetry(a_batch(number)), number)
        writer.flush()
    writer.close()
    first = part_paths(writer.folder, "telemetry")[0]
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(StateError, match=r"telemetry-000001.arrow: row 0: "):
        read(tmp_path)


def test_a_trajectory_of_a_later_format_is_refused(tmp_path: Path) -> None:
    writer = TrajectoryWriter(tmp_path, "demo", 1, Config(), {}, 5)
    writer.close()
    path = writer.folder / "meta.json"
    path.write_text(path.read_text().replace('"v": 4', '"v": 5'))
    with pytest.raises(StateError, match=r"meta.json: need format <= 4, was 5"):
        read_epochs(tmp_path)


def test_no_trajectory_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        StateError, match="nowhere: no such folder: need the folder of a trajectory"
    ):
        read_epochs(tmp_path / "nowhere")


@pytest.mark.parametrize("above", [".", "trajectory"])
def test_a_folder_above_a_trajectory_is_one_line_that_names_it(tmp_path: Path, above: str) -> None:
    root = tmp_path / "trajectory" / "demo"
    TrajectoryWriter(root, "demo", 1, Config(), {}, 5).close()
    with pytest.raises(
        StateError, match="need the folder of a trajectory; found one at "
    ) as raised:
        read_epochs(tmp_path / above)
    assert str(raised.value).endswith(str(root))


def test_a_folder_of_anything_else_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"no epoch-\* in it: need the folder of a trajectory$"):
        read_epochs(tmp_path)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StateError, match=r"file/run: cannot be written: Not a directory"):
        TrajectoryWriter(tmp_path / "file" / "run", "demo", 1, Config(), {}, 5)


@contextmanager
def files_of_at_most(limit_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("batches", "ticks"), [(1, 100), (100, 1)])
def test_a_flush_cut_short_leaves_a_beginning_of_the_inputs(
    batches: int, ticks: int, tmp_path: Path
) -> None:
    writer = TrajectoryWriter(tmp_path, "demo", 1, Config(), {}, 5)
    for number in range(1, 4):
        writer.event(Tick(), number, NOTICES)
    writer.flush()
    for _ in range(batches):
        writer.telemetry(encode_telemetry(a_batch(1)), 4)
    for _ in range(ticks):
        writer.event(Tick(), 4, NOTICES)
    with files_of_at_most(8_000):
        writer.flush()
    assert "File too large" in writer.paused
    assert [recorded.seq for recorded in read(tmp_path)] == [1, 2, 3]
    writer.close()
    assert [recorded.seq for recorded in read(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize("kind", ["events", "telemetry"])
def test_recording_resumes_after_a_full_disk_and_the_gap_is_recorded(
    kind: PartKind, tmp_path: Path
) -> None:
    writer = TrajectoryWriter(tmp_path, "demo", 1, Config(), {}, 5)
    ts_ns = itertools.count(1)

    def flush_seven() -> None:
        for _ in range(6):
            if kind == "events":
                writer.event(Tick(), next(ts_ns), ())
            else:
                writer.telemetry(encode_telemetry(a_batch(1)), next(ts_ns))
        writer.event(Tick(), next(ts_ns), ())
        writer.flush()

    with files_of_at_most(10_000):
        while not writer.paused:
            flush_seven()
        assert writer.paused.endswith("epoch-000001: cannot be written: File too large")
        flushed = next(ts_ns) - 1 - 7  # a number is as good as a moment here
        assert writer.missing == 7
        flush_seven()
    with files_of_at_most(100):
        gap = writer.resume()
        writer.event(gap, next(ts_ns), ())
        writer.flush()  # too early: there is no room yet
        assert writer.paused
    opens_by_itself(only_part(tmp_path, kind))
    assert [recorded.seq for recorded in read(tmp_path)] == [*range(1, flushed + 1)]

    gap = writer.resume()
    assert (gap.first, gap.last) == (flushed + 1, flushed + 15)
    assert (gap.first_ns, "File too large" in gap.why) == (flushed + 1, True)
    writer.event(gap, next(ts_ns), ())
    writer.telemetry(encode_telemetry(a_batch(2)), next(ts_ns))
    writer.close()
    later = [(recorded.seq, type(recorded.message)) for recorded in read(tmp_path)[flushed:]]
    assert later == [(flushed + 16, RecordingGap), (flushed + 17, Telemetry)]


def test_a_folder_in_the_place_of_a_part_is_one_clear_line(tmp_path):
    write_epoch(tmp_path)
    part = only_part(tmp_path, "events")
    part.unlink()
    part.mkdir()
    with pytest.raises(StateError, match=r"events-000001\.jsonl: cannot be read: Is a directory"):
        list(read_epochs(tmp_path)[0].events_after(0))


def test_a_folder_with_too_large_a_number_is_no_epoch(tmp_path):
    for name in ("epoch-000007", f"epoch-{MAX_COUNT}", "epoch-99999999999999999999", "epoch-x"):
        (tmp_path / name).mkdir()
    assert newest_epoch(tmp_path) == 7
