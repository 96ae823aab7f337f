"""InfiniteHBD and Backblaze: small files of the same form, then the data themselves."""

from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from tests.shared_data import shared_data
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.importers.backblaze import import_backblaze
from torchloom_core.lab.trace.importers.csv_trace import import_csv
from torchloom_core.lab.trace.importers.infinitehbd import import_infinitehbd
from torchloom_core.lab.trace.recorded.recorded import from_trajectory
from torchloom_core.lab.trace.validation.validate import Findings, validate
from torchloom_core.testing import ImporterContract

HEADER = "node_id,t,ev,Level,Class,Desc\n"
DAY_NS = 86_400 * SECOND_NS
T0_NS = int(datetime(2024, 3, 30, tzinfo=UTC).timestamp()) * SECOND_NS


def infinitehbd(folder: Path, *rows: str) -> Bundle:
    (folder / "fault_events.csv").write_text(HEADER + "".join(f"{row}\n" for row in rows))
    import_infinitehbd(folder, folder / "out.tltrace")
    return Bundle.open(folder / "out.tltrace")


def test_a_fault_is_what_lies_between_its_start_and_its_end(tmp_path):
    opened = infinitehbd(
        tmp_path,
        "n1,1,fault_start,Hardware Failure,GPU,ECC",
        "n1,1.5,fault_start,Other Failure,Unknown Error,Unknown",
        "n1,2,fault_end,Hardware Failure,GPU,ECC",
    )
    ended, open_ = opened.events()
    assert (ended.t_event, ended.t_resolved) == (T0_NS + DAY_NS, T0_NS + 2 * DAY_NS)
    assert (ended.kind, ended.code, ended.severity) == ("GPU", "ECC", "Hardware Failure")
    assert (ended.follows, open_.follows) == ("component", "unknown")
    assert (open_.t_event, open_.t_resolved) == (T0_NS + 3 * DAY_NS // 2, None)
    assert (opened.manifest.start_ns, opened.manifest.end_ns) == (T0_NS, T0_NS + 2 * DAY_NS)


class TestCsv(ImporterContract):
    importer = import_csv

    def write_source(self, folder):
        rows = "time,component,kind\n2026-01-01,n1,gpu\n2026-01-03,n2,nic\n"
        (folder / "mine.csv").write_text(rows)
        return folder / "mine.csv"


class TestInfinitehbd(ImporterContract):
    importer = import_infinitehbd

    def write_source(self, folder):
        row = "n1,1,fault_start,Hardware Failure,GPU,ECC\n"
        (folder / "fault_events.csv").write_text(HEADER + row)
        return folder


class TestBackblaze(ImporterContract):
    importer = import_backblaze

    def write_source(self, folder):
        scrapes((1, "early", 0, 1.0), (2, "early", 1, 1.0)).to_parquet(folder / "0.parquet")
        return folder


@pytest.mark.parametrize(
    "write",
    [import_csv, import_infinitehbd, import_backblaze, from_trajectory],
    ids=lambda write: write.__name__,
)
def test_a_bundle_that_is_there_is_refused_before_anything_is_read(tmp_path, write):
    (tmp_path / "out.tltrace").mkdir()
    with pytest.raises(TraceError, match=r"out\.tltrace: exists already"):
        write(tmp_path / "nothing", tmp_path / "out.tltrace")
    with pytest.raises(TraceError, match=r"out\.tltrace: --force replaces only"):
        write(tmp_path / "nothing", tmp_path / "out.tltrace", force=True)


def test_overlapping_faults_of_one_kind_end_in_the_order_in_which_they_began(tmp_path):
    what = "Hardware Failure,GPU,ECC"
    opened = infinitehbd(
        tmp_path,
        f"n1,1,fault_start,{what}",
        f"n1,2,fault_start,{what}",
        f"n1,3,fault_end,{what}",
        f"n1,4,fault_end,{what}",
    )
    resolved = [event.t_resolved for event in opened.events()]
    assert resolved == [T0_NS + 3 * DAY_NS, T0_NS + 4 * DAY_NS]


def test_equal_faults_of_one_moment_share_a_cause(tmp_path):
    opened = infinitehbd(
        tmp_path,
        "n1,1,fault_start,Hardware Failure,Fan,slow",
        "n2,1,fault_start,Hardware Failure,Fan,slow",
        "n3,1,fault_start,Hardware Failure,Fan,off",
        "n4,2,fault_start,Hardware Failure,Fan,slow",
    )
    assert [event.cause for event in opened.events()] == ["", "fault-0001", "", ""]


def test_nodes_without_a_fault_are_there_too(tmp_path):
    opened = infinitehbd(tmp_path, "n1,1,fault_start,Hardware Failure,Fan,slow")
    names = [part.id for part in opened.topology()]
    assert (len(names), names[:2], names[-1]) == (400, ["n1", "quiet-001"], "quiet-399")
    assert {part.gpus for part in opened.topology()} == {8}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["n1,1,fault_end,H,G,D"], r"fault_events\.csv:2: need a fault_start before its end"),
        (["n1,soon,fault_start,H,G,D"], r"fault_events\.csv:2: need t in days, was 'soon'"),
        (["n1,nan,fault_start,H,G,D"], r"fault_events\.csv:2: need t in days, was 'nan'"),
        (["n1,1e6,fault_start,H,G,D"], r"fault_events\.csv:2: need t of less than 200 years"),
        (["n1,1,fault_start,H"], r"fault_events\.csv:2: need 6 cells as in the header, was 4"),
        (["n1,1,fault,H,G,D"], r":2: need ev fault_start or fault_end, was 'fault'"),
        (
            ["n1,2,fault_start,H,G,D", "n1,1,fault_end,H,G,D"],
            r":3: need t >= that of the row before, was '1'",
        ),
        ([], r"need a fault, was none"),
    ],
)
def test_rows_that_cannot_be_are_named(tmp_path, rows, message):
    with pytest.raises(TraceError, match=message):
        infinitehbd(tmp_path, *rows)
    assert not (tmp_path / "out.tltrace").exists()


def test_a_missing_file_or_column_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"fault_events\.csv: cannot be read"):
        import_infinitehbd(tmp_path, tmp_path / "out.tltrace")
    (tmp_path / "fault_events.csv").write_text("node_id,t,ev,Level,Desc\n")
    with pytest.raises(TraceError, match=r"fault_events\.csv:1: need a column 'Class', was none"):
        import_infinitehbd(tmp_path, tmp_path / "out.tltrace")


def test_infinitehbd_comes_in_whole(tmp_path):
    out = tmp_path / "i.tltrace"
    import_infinitehbd(shared_data("infinitehbd"), out)
    events = Bundle.open(out).events()
    assert validate(out) == Findings(faults=(), warnings=())
    assert len(events) == 584
    assert sum(event.severity == "Hardware Failure" for event in events) == 298
    assert all(event.t_resolved is not None for event in events)


# --- Backblaze ---


def scrapes(*rows: tuple[int, str, int, float | None]) -> pd.DataFrame:
    """A row a day and drive: day of May 2013, serial number, whether it failed, SMART 5."""
    return pd.DataFrame(
        {
            "date": [pd.Timestamp(2013, 5, day) for day, *_ in rows],
            "serial_number": [row[1] for row in rows],
            "model": ["M"] * len(rows),
            "capacity_bytes": [10**12] * len(rows),
            "failure": [row[2] for row in rows],
            "smart_5_raw": pd.array([row[3] for row in rows], dtype="Float64"),
            "smart_9_normalized": [1] * len(rows),
        }
    )


def day(of_may: int) -> int:
    return int(datetime(2013, 5, of_may, tzinfo=UTC).timestamp()) * SECOND_NS


def backblaze(folder: Path, *tables: pd.DataFrame, force: bool = False) -> Bundle:
    for number, rows in enumerate(tables):
        rows.to_parquet(folder / f"{number}.parquet")
    import_backblaze(folder, folder / "out.tltrace", force=force)
    return Bundle.open(folder / "out.tltrace")


def test_a_drive_is_there_from_its_first_day_to_its_last(tmp_path):
    opened = backblaze(
        tmp_path,
        scrapes((1, "early", 0, 1.0), (3, "stays", 0, 1.0), (1, "stays", 0, 1.0)),
        scrapes((2, "late", 0, 1.0), (3, "late", 1, 1.0)),
    )
    there = {part.id: (part.from_ns, part.until_ns) for part in opened.topology()}
    assert there == {"early": (None, day(2)), "late": (day(2), None), "stays": (None, None)}
    assert opened.topology()[0].extra == {"model": "M", "capacity_bytes": 10**12}
    assert (opened.manifest.start_ns, opened.manifest.end_ns) == (day(1), day(4))


def test_a_drive_fails_at_the_end_of_its_last_day_and_one_that_vanishes_does_not(tmp_path):
    opened = backblaze(
        tmp_path,
        scrapes((1, "vanishes", 0, 0.0), (1, "fails", 0, 0.0), (2, "fails", 1, 9.0)),
        scrapes((1, "stays", 0, 0.0), (2, "stays", 0, 0.0), (3, "stays", 0, 0.0)),
    )
    (event,) = opened.events()
    assert (event.component, event.fatal, event.follows) == ("fails", True, "component")
    assert event.t_event == event.t_avail == day(3)


def test_a_days_values_are_available_at_its_end(tmp_path):
    opened = backblaze(tmp_path, scrapes((1, "a", 0, 3.0), (2, "a", 0, None)))
    rows = pa.concat_tables(opened.telemetry()).to_pandas()
    assert rows["t_event"].tolist() == [day(1), day(2)]
    assert rows["t_avail"].tolist() == [day(2), day(3)]
    assert rows["valid"].tolist() == [True, False]
    endless = backblaze(tmp_path, scrapes((1, "a", 0, float("inf")), (2, "a", 0, 1.0)), force=True)
    (rows,) = endless.telemetry()
    assert rows["valid"].to_pylist() == [False, True]
    assert opened.metrics == ("smart_5",)


def test_drives_that_cannot_be_are_named(tmp_path):
    with pytest.raises(TraceError, match="need Parquet files, was none"):
        backblaze(tmp_path)
    with pytest.raises(TraceError, match="was a second row of a on 2013-05-01"):
        backblaze(tmp_path, scrapes((1, "a", 0, 3.0), (1, "a", 0, 4.0)))
    undated = scrapes((1, "a", 0, 3.0), (2, "a", 0, 4.0))
    undated.loc[1, "date"] = pd.NaT
    with pytest.raises(TraceError, match=r"0\.parquet:2: need a date, was none"):
        backblaze(tmp_path, undated)
    with pytest.raises(TraceError, match=r"0\.parquet: need a column 'failure', was none"):
        backblaze(tmp_path, scrapes((1, "a", 0, 3.0)).drop(columns="failure"))
    rows = scrapes((1, "a", 0, 3.0), (2, "a", 0, 4.0))
    for column, cells, rule in (
        ("date", ["2013-05-01", "soon"], "2: need a date in the years 1678 to 2261, was 'soon'"),
        ("date", ["9999-12-31"] * 2, "1: need a date in the years 1678 to 2261, was '9999-12-31'"),
        ("date", [1.0, float("inf")], " need dates in date, was float64"),
        ("failure", ["0", "no"], "2: need a number in failure, was 'no'"),
        ("smart_5_raw", ["3", "high"], "2: need a number in smart_5_raw, was 'high'"),
    ):
        with pytest.raises(TraceError, match=rf"0\.parquet:{rule}"):
            backblaze(tmp_path, rows.assign(**{column: cells}))
    with pytest.raises(TraceError, match="need a column such as smart_5_raw, was none"):
        backblaze(tmp_path, rows.drop(columns="smart_5_raw"))
    (tmp_path / "0.parquet").write_bytes((tmp_path / "0.parquet").read_bytes()[:-9])
    with pytest.raises(TraceError, match=r"0\.parquet: need a complete Parquet file"):
        backblaze(tmp_path)


@pytest.mark.slow
def test_backblaze_comes_in_whole(tmp_path):
    out = tmp_path / "b.tltrace"
    import_backblaze(shared_data("backblaze"), out)
    opened = Bundle.open(out)
    assert validate(out) == Findings(faults=(), warnings=())
    assert (len(opened.events()), len(opened.topology())) == (120, 22_892)
    assert opened.metrics == ("smart_1", "smart_194", "smart_197", "smart_5", "smart_9")
    assert sum(part.num_rows for part in opened.telemetry()) == 5 * 868_524
