import errno
import itertools
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace.small import NODES, START_NS, at, bundle, contents, fault, table
from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import INPUTS, Component, Exposure
from torchloom_core.lab.trace.bundle.writer import BundleWriter, TelemetryWriter


def writer(path: Path, *, end_s: float = 86_400, **changes: object) -> BundleWriter:
    about = {"source": "a test", "licence": "none", "synthetic": True}
    return BundleWriter(
        path,
        name="small",
        start_ns=START_NS,
        end_ns=at(end_s),
        **{**about, **changes},  # type: ignore[arg-type]
    )


def test_the_same_rows_give_the_same_bytes(tmp_path):
    samples = [(t_s, node, "x", t_s / 7) for t_s in range(50) for node in "ab"]
    for name in ("one", "two"):
        bundle(tmp_path / name, [*NODES, fault(1), fault(2)], samples)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@given(st.sets(st.integers(1, 99)))
def test_how_telemetry_is_cut_into_tables_does_not_show(cuts):
    whole = table([(t_s, "ab"[t_s % 2], "xyz"[t_s % 3], t_s / 7) for t_s in range(100)])
    edges = [0, *sorted(cuts), 100]
    with tempfile.TemporaryDirectory() as folder:
        one, other = Path(folder) / "one", Path(folder) / "other"
        with writer(one) as made:
            made.telemetry(whole)
        with writer(other) as made:
            for start, end in itertools.pairwise(edges):
                made.telemetry(whole.slice(start, end - start))
        assert contents(one) == contents(other)


def test_an_error_leaves_nothing_behind(tmp_path):
    with pytest.raises(ValueError, match="stop"), writer(tmp_path / "b") as made:  # noqa: PT012
        made.add(fault(1))
        made.telemetry(table([(1, "a", "x", 1.0)]))
        raise ValueError("stop")
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_taken_is_refused(tmp_path):
    bundle(tmp_path / "b", [fault(1)])
    before = contents(tmp_path)
    with pytest.raises(TraceError, match="exists already"):
        bundle(tmp_path / "b", [fault(2)])
    assert contents(tmp_path) == before


def test_force_replaces_a_bundle_and_nothing_else(tmp_path):
    bundle(tmp_path / "b", [fault(1)])
    with writer(tmp_path / "b", force=True) as made:
        made.add(fault(2))
    assert [event.t_event for event in Bundle.open(tmp_path / "b").events()] == [at(2)]
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    (tmp_path / "precious").mkdir()
    with (
        pytest.raises(TraceError, match="--force replaces only trace bundles"),
        writer(tmp_path / "precious", force=True),
    ):
        pass


def test_of_two_that_write_to_one_path_at_once_the_second_is_refused(tmp_path):
    with writer(tmp_path / "b") as first:
        first.add(fault(1))
        second = writer(tmp_path / "b").__enter__()
        second.add(fault(2))
    with pytest.raises(TraceError, match=r"b: exists already; use --force"):
        second.__exit__(None, None, None)
    assert [event.t_event for event in Bundle.open(tmp_path / "b").events()] == [at(1)]
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_telemetry_that_cannot_be_ended_does_not_hide_what_went_wrong(tmp_path, monkeypatch):
    def close(self):
        raise pa.ArrowInvalid("Operation on closed file")

    with pytest.raises(TraceError, match="No space left"), writer(tmp_path / "b"):  # noqa: PT012
        monkeypatch.setattr(TelemetryWriter, "close", close)
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_replacement_keeps_the_old_bundle(tmp_path):
    bundle(tmp_path / "b", [fault(1)])
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="stop"), writer(tmp_path / "b", force=True):
        raise ValueError("stop")
    assert contents(tmp_path) == before


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(TraceError, match="file/b: cannot be written: need a folder, was a file: "),
        writer(tmp_path / "file" / "b"),
    ):
        pass


def test_an_empty_span_is_refused(tmp_path):
    with pytest.raises(TraceError, match="need end_ns > start_ns"):
        writer(tmp_path / "b", end_s=0)


def test_a_span_beyond_64_bit_differences_is_refused(tmp_path):
    with pytest.raises(TraceError, match=r"b: need a span in the years 1824 to 2115, was .* to 23"):
        writer(tmp_path / "b", end_s=(2**63 - 1) // 10**9)


def test_exposure_comes_from_the_topology(tmp_path):
    with writer(tmp_path / "b", end_s=10 * 86_400) as made:
        made.add(Component(id="a", kind="node"))
        made.add(Component(id="b", kind="node", from_ns=0, until_ns=at(86_400)))
        made.add(Component(id="c", kind="node", from_ns=at(11 * 86_400)))
        made.add(Component(id="r", kind="rack", from_ns=at(86_400 * 5)))
    assert Bundle.open(tmp_path / "b").manifest.exposure == {
        "node": Exposure(components=2, component_days=11.0),
        "rack": Exposure(components=1, component_days=5.0),
    }


def test_without_a_topology_exposure_comes_from_what_is_named(tmp_path):
    with writer(tmp_path / "b") as made:
        made.add(fault(1, "a"))
        made.telemetry(table([(1, "b", "x", 1.0)]))
    exposure = {"node": Exposure(components=2, component_days=2.0)}
    assert Bundle.open(tmp_path / "b").manifest.exposure == exposure


def test_kernel_inputs_are_written_as_they_are(tmp_path):
    with writer(tmp_path / "b") as made:
        made.add_input(b'{"seq":1}')
        made.add_input(b'{"seq":2}')
    assert (tmp_path / "b" / INPUTS).read_bytes() == b'{"seq":1}\n{"seq":2}\n'
    assert Bundle.open(tmp_path / "b").manifest.files[INPUTS].rows == 2


# --- telemetry ---


def write_telemetry(path: Path, *tables: pa.Table) -> None:
    with writer(path) as made:
        for rows in tables:
            made.telemetry(rows)


def test_telemetry_that_goes_back_in_time_is_refused(tmp_path):
    first, second = table([(5, "a", "x", 1.0)]), table([(4, "a", "x", 1.0)])
    for tables in ([first, second], [pa.concat_tables([first, second])]):
        with pytest.raises(TraceError, match=r"need t_avail >= \d+, that of the row before"):
            write_telemetry(tmp_path / "b", *tables)


def test_what_came_at_one_moment_is_sorted_by_when_it_happened(tmp_path):
    rows = table([(5, "a", "x", 1.0), (5, "a", "x", 2.0), (6, "a", "x", 3.0)])
    t_event = pa.array([at(4), at(3), at(1)])
    with writer(tmp_path / "b") as made:
        made.telemetry(rows.set_column(0, "t_event", t_event))
    (part,) = Bundle.open(tmp_path / "b").telemetry()
    assert part["value"].to_pylist() == [2.0, 1.0, 3.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.drop_columns("metric"), "need a column 'metric', was none"),
        (
            lambda rows: rows.set_column(4, "value", pa.array([None, 1.0])),
            "telemetry:1: need a value of value, was null",
        ),
        (
            lambda rows: rows.set_column(2, "component", pa.array([1, 2])),
            "need component of type string, was int64",
        ),
    ],
)
def test_telemetry_that_is_not_whole_is_refused(tmp_path, change, message):
    rows = table([(1, "a", "x", 1.0), (2, "a", "x", 1.0)])
    with pytest.raises(TraceError, match=message):
        write_telemetry(tmp_path / "b", change(rows))


def test_later_tables_need_the_columns_of_the_first(tmp_path):
    rows = table([(1, "a", "x", 1.0)])
    other = rows.append_column("unit", pa.array(["c"]))
    with pytest.raises(TraceError, match=r"need the columns of the first table, .*unit, was"):
        write_telemetry(tmp_path / "b", other, rows)


def test_long_telemetry_goes_to_several_files_and_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr("torchloom_core.lab.trace.bundle.writer.GROUP_ROWS", 4)
    monkeypatch.setattr("torchloom_core.lab.trace.bundle.writer.GROUPS_PER_FILE", 2)
    rows = table([(t_s, "ab"[t_s % 2], "x", float(t_s)) for t_s in range(23)])
    made = TelemetryWriter(tmp_path / "telemetry")
    for start in range(0, 23, 5):
        made.append(rows.slice(start, 5))
    made.close()
    files = sorted((tmp_path / "telemetry").iterdir())
    assert made.rows == {"000000.parquet": 8, "000001.parquet": 8, "000002.parquet": 7}
    assert [pq.read_metadata(file).num_row_groups for file in files] == [2, 2, 2]
    read = pa.concat_tables([pq.read_table(file) for file in files])
    assert read["value"].to_pylist() == [float(t_s) for t_s in range(23)]
    assert made.components == {"a", "b"}


def test_values_come_back_to_the_bit(tmp_path):
    values = np.array([0.1, -0.0, np.inf, np.nan, 5e-324])
    rows = table([(t_s, "a", "x", 0.0) for t_s in range(5)])
    with writer(tmp_path / "b") as made:
        made.telemetry(rows.set_column(4, "value", pa.array(values)))
    (part,) = Bundle.open(tmp_path / "b").telemetry()
    assert part["value"].to_numpy().tobytes() == values.tobytes()
