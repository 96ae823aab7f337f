import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trace.small import NODES, START_NS, at, bundle, fault, table
from torchloom_core.floor.clock import moment_text
from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.checksums import changed, refuse_changed, sha256_of
from torchloom_core.lab.trace.bundle.schema import (
    ACTIONS,
    EVENTS,
    JOBS,
    MANIFEST,
    PLACEMENT,
    TELEMETRY,
    TOPOLOGY,
    ActionTaken,
    Job,
    Placement,
)
from torchloom_core.lab.trace.bundle.telemetry import PART_ROWS
from torchloom_core.lab.trace.validation.validate import Findings, validate

PARQUET = f"{TELEMETRY}/000000.parquet"
SAMPLES = [(t_s, node, metric, 1.0) for t_s in (1, 2) for node in "ab" for metric in "xy"]
ROWS = [
    *NODES,
    Job(id="j", start_ns=START_NS),
    Placement(job="j", group="g0", rank=0, component="a", from_ns=at(0), until_ns=at(9)),
    Placement(job="j", group="g0", rank=0, component="b", from_ns=at(9)),
    fault(2, resolved_s=9),
    fault(3, "b", avail_s=4),
    fault(5, cause="a@2"),
    ActionTaken(id="d", t_event=at(5), t_avail=at(6), component="a", kind="drain"),
]


def when(seconds: float) -> str:
    return moment_text(at(seconds))


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """A bundle with every file, without a fault."""
    return bundle(tmp_path / "b.tltrace", ROWS, SAMPLES).path


def faults(path: Path) -> list[str]:
    """Return the faults but for checksums, their files relative to the bundle."""
    found = [fault.removeprefix(f"{path}/") for fault in validate(path).faults]
    return [fault for fault in found if "need sha256" not in fault]


def edit(path: Path, line: int, **change: Any) -> None:
    """Change columns of one line; None takes a column away."""
    lines = path.read_text().splitlines()
    row = {**json.loads(lines[line - 1]), **change}
    present = {name: value for name, value in row.items() if value is not None}
    lines[line - 1] = json.dumps(present)
    path.write_text("\n".join(lines) + "\n")


def test_a_sound_bundle_has_no_fault(sound):
    assert validate(sound) == Findings(faults=(), warnings=())


@pytest.mark.parametrize(
    ("file", "line", "change", "fault"),
    [
        (EVENTS, 2, {"component": None}, "need a column 'component', was none"),
        (EVENTS, 2, {"id": "a@2"}, "need a unique id, was 'a@2' again"),
        (EVENTS, 2, {"component": "c"}, "need a component of the topology, was 'c'"),
        (
            EVENTS,
            2,
            {"t_event": at(1)},
            f"need t_event >= {when(2)} of an earlier row, was {when(1)}",
        ),
        (EVENTS, 2, {"t_avail": at(2)}, f"need t_avail >= t_event {when(3)}, was {when(2)}"),
        (
            EVENTS,
            3,
            {"t_avail": at(99)},
            f"need t_avail in the span {when(0)} to {when(60)}, was {when(99)}",
        ),
        (
            EVENTS,
            1,
            {"t_event": at(-1)},
            f"need t_event in the span {when(0)} to {when(60)}, was {when(-1)}",
        ),
        (EVENTS, 1, {"t_resolved": at(1)}, f"need t_resolved >= t_event {when(2)}, was {when(1)}"),
        (EVENTS, 1, {"fatal": "yes"}, "need fatal of type bool, was 'yes'"),
        (ACTIONS, 1, {"t_end": at(4)}, f"need t_end >= t_event {when(5)}, was {when(4)}"),
        (TOPOLOGY, 2, {"parents": ["r9"]}, "need parents of the topology, was 'r9'"),
        (TOPOLOGY, 2, {"parents": ["a"]}, "need parents without a cycle, was a > a"),
        (TOPOLOGY, (2, 5), {"id": "b"}, "need a unique id, was 'b' again"),
        (
            TOPOLOGY,
            2,
            {"from_ns": 5, "until_ns": 4},
            "need until_ns >= from_ns 1970-01-01T00:00:00.000000005Z, was 1970-",
        ),
        (JOBS, 1, {"end_ns": at(-1)}, f"need end_ns >= start_ns {when(0)}, was"),
        (JOBS, 1, {"groups": 0}, "need groups >= 1, was 0"),
        (PLACEMENT, 1, {"job": "k"}, "need a job of jobs.jsonl, was 'k'"),
        (
            PLACEMENT,
            (1, 2),
            {"until_ns": at(10)},
            "need one placement at a time for rank 0 of group 'g0' of job 'j', was a second one "
            f"from {when(0)}",
        ),
        (PLACEMENT, 2, {"component": "c"}, "need a component of the topology, was 'c'"),
    ],
)
def test_a_row_that_breaks_a_rule_is_named(sound, file, line, change, fault):
    """A row that is named at another line than the one that changed has both."""
    changed, named = line if isinstance(line, tuple) else (line, line)
    edit(sound / file, changed, **change)
    assert any(one.startswith(f"{file}:{named}: {fault}") for one in faults(sound)), faults(sound)


def test_all_faults_are_found_at_once(sound):
    edit(sound / EVENTS, 1, component="c", t_resolved=at(1))
    edit(sound / EVENTS, 2, kind=None)
    with (sound / EVENTS).open("a") as file:
        file.write("{\n")
    assert [fault.split(": ")[0] for fault in faults(sound)] == [
        "events.jsonl:2",
        "events.jsonl:4",
        "events.jsonl:1",
        "events.jsonl:1",
    ]


def test_a_file_that_the_manifest_does_not_list_is_a_warning(tmp_path):
    path = bundle(tmp_path / "b", [fault(2)]).path
    (path / JOBS).touch()
    warning = f"{path / JOBS}: is not listed in the manifest"
    assert validate(path) == Findings(faults=(), warnings=(warning,))


def test_a_manifest_of_ones_own_needs_no_checksums(tmp_path):
    path = bundle(tmp_path / "b", [fault(2)]).path
    manifest = msgspec.json.decode((path / MANIFEST).read_bytes())
    (path / MANIFEST).write_bytes(msgspec.json.encode({**manifest, "files": {}}))
    assert validate(path).faults == ()
    assert validate(path).warnings == (f"{path / MANIFEST}: has no checksums",)


def test_what_cannot_be_opened_is_one_fault(tmp_path):
    (found,) = validate(tmp_path / "none").faults
    assert found.endswith("need a trace bundle, was nothing: there is no such folder")


def test_a_trace_without_a_failure_is_valid_with_a_warning(tmp_path):
    for name, rows in (("none", [*NODES]), ("harmless", [*NODES, fault(1, fatal=False)])):
        path = bundle(tmp_path / name, rows, SAMPLES).path
        warning = f"{path / EVENTS}: has no failures: no event is fatal"
        assert validate(path) == Findings(faults=(), warnings=(warning,))


def test_an_empty_trace_is_a_fault(tmp_path):
    path = bundle(tmp_path / "b", NODES).path
    assert faults(path) == [f"{EVENTS}: need an event or telemetry, was an empty trace"]


def test_a_cause_that_is_not_an_event_is_a_warning(tmp_path):
    path = bundle(tmp_path / "b", [fault(1, cause="storm")]).path
    warning = f"{path / EVENTS}: cause 'storm' of 'a@1' is not an event"
    assert validate(path) == Findings(faults=(), warnings=(warning,))


def test_a_circle_of_parents_is_named_once(tmp_path):
    path = bundle(tmp_path / "b", [*NODES, fault(1)]).path
    edit(path / TOPOLOGY, 1, parents=["a/gpu-1"])
    (found,) = faults(path)
    assert "need parents without a cycle, was " in found
    assert found.count(" > ") == 3


# --- telemetry ---


def change_row(column: str, row: int, value: Any) -> Callable[[pa.Table], pa.Table]:
    def change(rows: pa.Table) -> pa.Table:
        cells = rows[column].to_pylist()
        cells[row - 1] = value
        at_column = rows.column_names.index(column)
        return rows.set_column(at_column, column, pa.array(cells, rows.schema.field(column).type))

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda rows: rows.drop_columns("metric"), ": need a column 'metric', was none"),
        (
            lambda rows: rows.set_column(4, "value", pa.array(["x"] * rows.num_rows)),
            ": need value of type double, was string",
        ),
        (change_row("t_event", 3, at(2)), f":3: need t_avail >= t_event, was {when(1)}"),
        (
            change_row("t_avail", 8, at(1)),
            f":8: need t_avail >= that of the row before, was {when(1)}",
        ),
        (
            change_row("t_event", 2, at(-1)),
            f":2: need t_event in the span {when(0)} to {when(60)}, was {when(-1)}",
        ),
        (
            change_row("t_avail", 8, at(61)),
            f":8: need t_avail in the span {when(0)} to {when(60)}, was {when(61)}",
        ),
        (change_row("component", 5, "c"), ":5: need a component of the topology, was 'c'"),
        (change_row("value", 5, np.nan), ":5: need a finite value where valid, was nan"),
        (change_row("value", 6, -np.inf), ":6: need a finite value where valid, was -inf"),
        (change_row("valid", 6, None), ":6: need a value of valid, was null"),
    ],
)
def test_telemetry_that_breaks_a_rule_is_named(sound, change, fault):
    pq.write_table(change(table(SAMPLES)), sound / PARQUET)
    assert f"{PARQUET}{fault}" in faults(sound)


def test_many_rows_that_break_a_rule_are_one_line(sound):
    pq.write_table(table([(t_s, "c", "x", 1.0) for t_s in range(9)]), sound / PARQUET)
    assert faults(sound) == [
        f"{PARQUET}:1: need a component of the topology, was 'c', and 8 more rows"
    ]


def test_invalid_values_may_be_anything(sound):
    rows = change_row("valid", 5, False)(change_row("value", 5, np.nan)(table(SAMPLES)))
    pq.write_table(rows, sound / PARQUET)
    assert faults(sound) == []


def test_times_are_in_order_across_files(sound):
    pq.write_table(table([(1.5, "a", "x", 1.0)]), sound / TELEMETRY / "000001.parquet")
    fault = f"need t_avail >= that of the row before, was {when(1.5)}"
    assert faults(sound) == [f"{TELEMETRY}/000001.parquet:1: {fault}"]


@pytest.mark.parametrize("length", [0, 100, -1])
def test_a_truncated_parquet_file_is_named(sound, length):
    data = (sound / PARQUET).read_bytes()
    (sound / PARQUET).write_bytes(data[:length])
    (found,) = faults(sound)
    assert found.startswith(f"{PARQUET}: need a complete Parquet file: ")
    assert "\n" not in found


def test_reading_reports_its_progress(sound):
    reported: list[tuple[str, int, int]] = []
    validate(sound, lambda path, done, rows: reported.append((path.name, done, rows)))
    assert reported == [("000000.parquet", len(SAMPLES), len(SAMPLES))]


@pytest.mark.slow
def test_a_file_is_never_in_memory_completely(sound):
    """Values that do not compress, in row groups of a part each."""
    values = np.random.default_rng(0).normal(size=16 * PART_ROWS)
    rows = table([(1, "a", "x", 1.0)]).take(np.zeros(len(values), dtype=np.int64))
    rows = rows.set_column(rows.column_names.index("value"), "value", pa.array(values))
    pq.write_table(rows, sound / PARQUET, row_group_size=PART_ROWS)
    del rows
    before, held = pa.total_allocated_bytes(), []
    validate(sound, lambda _path, _done, _rows: held.append(pa.total_allocated_bytes() - before))
    assert len(held) == 16
    assert max(held) < (sound / PARQUET).stat().st_size


@pytest.fixture
def small(tmp_path):
    return bundle(tmp_path / "b", [fault(1)], [(1, "a", "x", 1.0)])


def test_what_was_written_is_as_the_manifest_lists_it(small):
    assert list(changed(small.path, small.manifest.files)) == []
    refuse_changed(small.path, small.manifest.files)


@pytest.mark.parametrize("file", [EVENTS, PARQUET])
def test_a_file_that_was_changed_is_refused_in_one_line(small, file):
    before = sha256_of(small.path / file)
    with (small.path / file).open("ab") as changing:
        changing.write(b"\n")
    was = sha256_of(small.path / file)
    message = f"{small.path / file}: need sha256 {before[:12]}..., was {was[:12]}..."
    assert list(changed(small.path, small.manifest.files)) == [message]
    with pytest.raises(TraceError) as refused:
        refuse_changed(small.path, small.manifest.files)
    assert str(refused.value) == f"{message}; the file changed after the bundle was written"


def test_a_file_that_is_gone_or_cannot_be_read_is_a_fault(small):
    (small.path / EVENTS).unlink()
    (small.path / PARQUET).unlink()
    (small.path / PARQUET).mkdir()
    assert list(changed(small.path, small.manifest.files)) == [
        f"{small.path / EVENTS}: need this file of the manifest, was none",
        f"{small.path / PARQUET}: cannot be read: Is a directory",
    ]


def test_a_name_that_is_none_of_a_file_is_a_fault_of_one_line(small):
    (entry, *_) = small.manifest.files.values()
    found = list(changed(small.path, {"a\0\n": entry, "b\n": entry}))
    assert found == [
        f"{small.path}/a\\x00\\n: cannot be read: embedded null byte",
        f"{small.path}/b\\n: need this file of the manifest, was none",
    ]


@pytest.mark.parametrize("name", ["/dev/zero", "../other.tltrace/events.jsonl", "a/../../b"])
def test_a_name_that_leads_out_of_the_bundle_is_a_fault_and_not_read(small, name):
    (entry, *_) = small.manifest.files.values()
    found = list(changed(small.path, {name: entry}))
    assert found == [f"{small.path}: need files in the bundle, was {name!r}"]


@pytest.mark.parametrize("file", [EVENTS, PARQUET])
def test_a_pipe_is_a_fault_and_not_waited_for(small, file):
    (small.path / file).unlink()
    os.mkfifo(small.path / file)
    found = list(changed(small.path, small.manifest.files))
    assert found == [f"{small.path / file}: cannot be read: Not a regular file"]


def test_a_manifest_that_is_a_pipe_is_not_waited_for(small):
    (small.path / MANIFEST).unlink()
    os.mkfifo(small.path / MANIFEST)
    with pytest.raises(TraceError, match=f"{MANIFEST}: cannot be read: Not a regular file"):
        Bundle.open(small.path)


def test_the_digest_is_also_of_files_that_the_manifest_does_not_list(small):
    manifest = json.loads((small.path / MANIFEST).read_bytes())
    (small.path / MANIFEST).write_text(json.dumps({**manifest, "files": {}}))
    digests = [Bundle.open(small.path).digest()]
    for file in (EVENTS, PARQUET):
        with (small.path / file).open("ab") as changing:
            changing.write(b"\n")
        digests.append(Bundle.open(small.path).digest())
    assert len(set(digests)) == 3
