import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace.small import NODES, START_NS, at, bundle, fault, table
from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import (
    ACTIONS,
    EVENTS,
    MANIFEST,
    TELEMETRY,
    TELEMETRY_COLUMNS,
    ActionTaken,
    Job,
    Placement,
    Row,
)
from torchloom_core.lab.trace.bundle.telemetry import PART_ROWS, numbers

JOB = Job(id="j", start_ns=START_NS, step_s=2.5, extra={"team": "a"})
PLACE = Placement(job="j", group="g0", rank=0, component="a", from_ns=START_NS)
DRAIN = ActionTaken(id="d", t_event=at(5), t_avail=at(6), component="a", kind="drain")


def test_what_is_written_is_read_back(tmp_path):
    first, second = fault(20, extra={"slot": [1, {"x": None}]}), fault(3, "b", resolved_s=9)
    opened = bundle(tmp_path / "b", [*NODES, JOB, PLACE, first, DRAIN, second])
    assert opened.topology() == NODES
    assert opened.jobs() == (JOB,)
    assert opened.placement() == (PLACE,)
    assert opened.events() == (second, first)
    assert opened.actions() == (DRAIN,)
    assert opened.metrics == ()
    assert list(opened.telemetry()) == []
    assert opened.manifest.files.keys() == {
        f"{name}.jsonl" for name in ("actions", "events", "jobs", "placement", "topology")
    }


def test_events_of_one_moment_are_sorted_by_id(tmp_path):
    events = [fault(1, "b"), fault(1, "a")]
    assert [event.id for event in bundle(tmp_path / "b", events).events()] == ["a@1", "b@1"]


def test_events_of_a_file_out_of_order_are_sorted(tmp_path):
    opened = bundle(tmp_path / "b", [fault(1), fault(2, "b")])
    path = opened.path / EVENTS
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    assert opened.events() == (fault(1), fault(2, "b"))


def test_only_the_manifest_and_the_events_are_needed(tmp_path):
    opened = bundle(tmp_path / "b", [fault(1)])
    assert (opened.topology(), opened.jobs(), opened.placement(), opened.actions()) == ((),) * 4


def test_a_frame_has_the_unknown_columns_and_integer_columns_stay_integers(tmp_path):
    large = 2**60 + 1
    frame = bundle(tmp_path / "b", [fault(1, extra={"n": large}), fault(2)]).frame(EVENTS)
    assert frame["n"].tolist()[0] == large
    assert frame["n"].isna().tolist() == [False, True]
    assert frame["t_event"].tolist() == [at(1), at(2)]
    assert frame["fatal"].tolist() == [True, True]


def test_the_frame_of_an_absent_file_has_columns_and_no_row(tmp_path):
    frame = bundle(tmp_path / "b", [fault(1)]).frame(ACTIONS)
    assert len(frame) == 0
    assert "t_end" in frame.columns


def test_the_digest_changes_with_any_row(tmp_path):
    digests = {bundle(tmp_path / str(t_s), [fault(t_s)]).digest() for t_s in (1, 2)}
    assert len(digests) == 2


# --- telemetry ---

SAMPLE = st.tuples(
    st.integers(0, 50), st.sampled_from("ab"), st.sampled_from(["x", "y"]), st.floats(-1, 1)
)
EDGE = st.none() | st.integers(-1, 52)


@given(st.lists(SAMPLE, min_size=1, max_size=30), EDGE, EDGE, st.none() | st.sets(st.just("x")))
def test_a_part_of_the_telemetry_is_what_came_in_that_time(samples, start, end, metrics):
    with tempfile.TemporaryDirectory() as folder:
        opened = bundle(Path(folder) / "b", NODES, samples)
        whole = rows_of(table(samples))
        edges = [None if edge is None else at(edge) for edge in (start, end)]
        read = [row for part in opened.telemetry(*edges, metrics) for row in rows_of(part)]
    assert read == [
        row
        for row in whole
        if (edges[0] is None or row["t_avail"] >= edges[0])
        and (edges[1] is None or row["t_avail"] < edges[1])
        and (metrics is None or row["metric"] in metrics)
    ]


def test_row_groups_of_another_time_are_not_read(tmp_path):
    opened = bundle(tmp_path / "b", NODES, [(1, "a", "x", 1.0)])
    (path,) = opened.parquet_files
    rows = [table([(t_s, "a", "x", float(t_s))]) for t_s in range(10)]
    with pq.ParquetWriter(path, rows[0].schema) as file:
        for row in rows:
            file.write_table(row)
    damage(path, row_group=7)
    assert [row["value"] for row in values(opened, at(2), at(5))] == [2.0, 3.0, 4.0]
    with pytest.raises(TraceError, match=r"000000\.parquet: need a complete Parquet file"):
        values(opened, at(7), at(8))


def test_without_metrics_no_file_is_read(tmp_path):
    opened = bundle(tmp_path / "b", NODES, [(1, "a", "x", 1.0)])
    damage(opened.parquet_files[0], row_group=0)
    assert list(opened.telemetry(metrics=())) == []


def test_telemetry_comes_a_bounded_part_at_a_time(tmp_path):
    opened = bundle(tmp_path / "b", NODES, [(1, "a", "x", 1.0)])
    (path,) = opened.parquet_files
    rows = 2_500_000
    columns = {
        "t_event": pa.repeat(START_NS, rows),
        "t_avail": pa.repeat(START_NS, rows),
        "component": pa.repeat("a", rows),
        "metric": pa.repeat("x", rows),
        "value": pa.repeat(1.0, rows),
        "valid": pa.repeat(True, rows),
    }
    pq.write_table(pa.table(columns), path, row_group_size=rows)
    sizes = [part.num_rows for part in opened.telemetry()]
    assert sum(sizes) == rows
    assert max(sizes) <= PART_ROWS


def test_files_are_read_in_the_order_of_their_names(tmp_path):
    opened = bundle(tmp_path / "b", NODES, [(1, "a", "x", 1.0)])
    for name, t_s in (("000002", 3), ("000001", 2)):
        path = tmp_path / "b" / TELEMETRY / f"{name}.parquet"
        pq.write_table(table([(t_s, "b", "y", 0.0)]), path)
    assert [row["t_avail"] for row in values(opened)] == [at(1), at(2), at(3)]
    assert (opened.metrics, opened.measured) == (("x", "y"), ("a", "b"))


def test_unknown_columns_of_the_telemetry_come_after_the_others(tmp_path):
    opened = bundle(tmp_path / "b", NODES, [(1, "a", "x", 1.0)])
    (path,) = opened.parquet_files
    rows = table([(1, "a", "x", 1.0)])
    pq.write_table(rows.add_column(0, "unit", pa.array(["celsius"])), path)
    (part,) = opened.telemetry()
    assert part.column_names == [*TELEMETRY_COLUMNS, "unit"]
    assert part["unit"].to_pylist() == ["celsius"]


def test_a_column_that_is_missing_or_of_another_type_is_named(tmp_path):
    opened = bundle(tmp_path / "b", NODES, [(1, "a", "x", 1.0)])
    (path,) = opened.parquet_files
    rows = table([(1, "a", "x", 1.0)])
    pq.write_table(rows.drop_columns("valid"), path)
    with pytest.raises(TraceError, match=r"000000\.parquet: need a column 'valid', was none"):
        list(opened.telemetry())
    pq.write_table(rows.set_column(4, "value", pa.array(["high"])), path)
    with pytest.raises(TraceError, match="need value of type double, was string"):
        list(opened.telemetry())
    pq.write_table(rows.set_column(2, "component", pa.array([7])), path)
    with pytest.raises(TraceError, match="need component of type string, was int64"):
        _ = opened.measured


@pytest.mark.parametrize("column", TELEMETRY_COLUMNS)
def test_telemetry_without_a_value_is_refused(tmp_path, column):
    opened = bundle(tmp_path / "b", NODES, [(1, "a", "x", 1.0)])
    (path,) = opened.parquet_files
    rows = table([(1, "a", "x", 1.0)])
    at = rows.column_names.index(column)
    pq.write_table(rows.set_column(at, column, pa.nulls(1, rows[column].type)), path)
    rule = rf"000000\.parquet: need a value of {column}, was null; `torchloom trace validate` shows"
    with pytest.raises(TraceError, match=rule):
        list(opened.telemetry())
    if column in {"component", "metric"}:
        with pytest.raises(TraceError, match=rule):
            _ = opened.measured, opened.metrics


def rows_of(part: pa.Table) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = part.to_pylist()
    return rows


def values(opened: Bundle, *edges: int) -> list[dict[str, object]]:
    return [row for part in opened.telemetry(*edges) for row in rows_of(part)]


def damage(path: Path, *, row_group: int) -> None:
    """Overwrite the pages of all columns of one row group."""
    found = pq.read_metadata(path).row_group(row_group)
    data = bytearray(path.read_bytes())
    first = found.column(0).dictionary_page_offset or found.column(0).data_page_offset
    length = sum(found.column(at).total_compressed_size for at in range(found.num_columns))
    data[first : first + length] = b"\xff" * length
    path.write_bytes(data)


# --- what is no bundle ---


def test_what_is_no_bundle_is_one_line(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for path, message in (
        (tmp_path / "none", "need a trace bundle, was nothing: there is no such folder"),
        (file, "need a trace bundle, was a file"),
        (tmp_path, r"need a file manifest\.json, was none"),
    ):
        with pytest.raises(TraceError, match=message):
            Bundle.open(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, r"manifest\.json: need schema 1, was 2"),
        ({"schema": "new"}, r"manifest\.json: need schema 1, was 'new'"),
        ({"start_ns": "today"}, r"manifest\.json: start_ns: need a whole number .*, was 'today'$"),
        ({"exposure": {"node": 1}}, r"manifest\.json: exposure\.node: need a table, was 1$"),
        ({"start_ns": -(2**63)}, r"manifest\.json: need a span in the years 1824 to 2115, was "),
        ({"end_ns": 2**63 - 1}, r"manifest\.json: need a span in the years 1824 to 2115, was "),
    ],
)
def test_a_manifest_of_another_schema_or_far_span_is_refused(tmp_path, change, message):
    path = bundle(tmp_path / "b", [fault(1)]).path / MANIFEST
    path.write_bytes(msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), **change}))
    with pytest.raises(TraceError, match=message):
        Bundle.open(path.parent)


def test_a_manifest_that_is_cut_off_is_refused(tmp_path):
    path = bundle(tmp_path / "b", [fault(1)]).path / MANIFEST
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TraceError, match=r"manifest\.json: need a JSON object"):
        Bundle.open(path.parent)


def test_a_bundle_without_events_is_refused(tmp_path):
    path = bundle(tmp_path / "b", [fault(1)]).path
    (path / EVENTS).unlink()
    with pytest.raises(TraceError, match=r"need a file events\.jsonl, was none"):
        Bundle.open(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "x"', r"events\.jsonl:2: need a JSON object, was '{\"id\": \"x\"'"),
        ("[1]", r"events\.jsonl:2: need a JSON object"),
        ('{"id": "x"}', r"events\.jsonl:2: need a column 't_event', was none"),
        (
            '{"id": "x", "t_event": 1.5, "t_avail": 2, "component": "a", "kind": "k"}',
            r"events\.jsonl:2: need t_event of type int, was 1\.5",
        ),
        (
            '{"id": "x", "t_event": 1, "t_avail": 2, "component": "a", "kind": "k", '
            '"follows": "me"}',
            "need follows one of component, job, fabric, unknown, was 'me'",
        ),
        (
            '{"id": "x", "t_event": 1, "t_avail": 36893488147419103232, "component": "a", '
            '"kind": "k"}',
            "t_avail",
        ),
        (
            f'{{"id": "x", "t_event": 1, "t_avail": {2**63}, "component": "a", "kind": "k"}}',
            f"need t_avail of type int <= {2**63 - 1}, was {2**63}$",
        ),
        (
            f'{{"id": "{"x" * 999}", "t_event": 1, "t_avail": 2, "component": ["{"a" * 999}"]}}',
            r"need component of type str, was \['a{58}$",
        ),
    ],
)
def test_a_row_that_is_none_is_named_with_its_line(tmp_path, line, message):
    opened = bundle(tmp_path / "b", [fault(1)])
    with (opened.path / EVENTS).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(TraceError, match=message):
        opened.events()


def test_a_column_called_extra_is_a_column_like_others(tmp_path):
    event = fault(1, extra={"extra": 3})
    assert bundle(tmp_path / "b", [event]).events() == (event,)


def test_an_extra_column_cannot_replace_a_schema_column(tmp_path):
    rows: list[Row] = [fault(1, extra={"kind": "other"})]
    with pytest.raises(TraceError, match="rename the extra column 'kind': the schema has it"):
        bundle(tmp_path / "b", rows)


def test_a_column_that_is_there_twice_or_a_time_that_is_text_is_one_line(tmp_path):
    opened = bundle(tmp_path / "b", [fault(1)], [(1, "a", "temp", 40.0)])
    (place,) = opened.parquet_files
    whole = pq.read_table(place)
    pq.write_table(whole.append_column("valid", whole["valid"]), place)
    with pytest.raises(TraceError, match=r"need each column once, was 'valid' twice$"):
        list(opened.telemetry())
    at = whole.column_names.index("t_avail")
    pq.write_table(whole.set_column(at, "t_avail", pa.array(["soon"])), place)
    for start_ns in (None, START_NS):
        with pytest.raises(TraceError, match=r"need t_avail of type int64, was string$"):
            list(opened.telemetry(start_ns))


@pytest.mark.parametrize("pieces", [[[3.5, -1.0]], [[3.5], [], [-1.0]], []])
def test_a_column_is_as_numpy_has_it(pieces):
    column = pa.chunked_array([pa.array(piece, pa.float64()) for piece in pieces], pa.float64())
    assert numbers(column).tolist() == [value for piece in pieces for value in piece]
    assert numbers(column).dtype == np.float64


def test_truths_are_truths_in_any_part_of_a_column():
    truths = [True, False, False, True, True, False, True, True, True, False]
    column = pa.chunked_array([pa.array(truths)]).slice(3)
    assert numbers(column).tolist() == truths[3:]
    assert numbers(column).dtype == np.bool_


READ = """
import sys
from pathlib import Path
from torchloom_core.lab.fitting.feasibility import sample_interval_s
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.recorded_values import recorded_values
from torchloom_core.lab.trace.feed.feed import Feed

bundle = Bundle.open(Path(sys.argv[1]))
middle_ns = (bundle.manifest.start_ns + bundle.manifest.end_ns) // 2
sample_interval_s(bundle), recorded_values(bundle, middle_ns)
list(Feed(bundle, tick_s=1.0, repair_s=1.0, start_ns=middle_ns, metrics=["x"]))
print("pandas" in sys.modules)
"""


@pytest.mark.integration
def test_reading_telemetry_does_not_import_pandas(tmp_path):
    samples = [(t_s, "a", metric, 1.0) for t_s in range(20) for metric in "xy"]
    trace = bundle(tmp_path / "b", NODES, samples, seconds=20.0)
    words = [sys.executable, "-c", READ, str(trace.path)]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
