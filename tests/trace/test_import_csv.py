import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import ConfigError, TraceError
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Component
from torchloom_core.lab.trace.importers.csv_trace import import_csv
from torchloom_core.lab.trace.validation.validate import validate

PLAIN = """\
time,component,kind,resolved,slot
2026-01-01T00:00:00,n1,gpu_lost,2026-01-01T10:00:00Z,4
2026-01-03T12:00:00+02:00,n2,"nic, left",,

2026-01-02,n1,hang,2026-01-02T01:00:00,
"""
WATCHED = 'start = "2026-01-01"\nend = "2026-02-01"\n'
TOPOLOGY = "id,kind,parent,gpus\nr0,rack,,\nn1,node,r0,8\nn2,node,r0; r0,8\n"
WIDE = """\
time,component,temp,power
2026-01-01T00:10:00,n1,50,300
2026-01-01T00:05:00,n2,51,
2026-01-01T00:10:00,n2,inf,3e2
"""
LONG = """\
at,component,metric,value,valid,unit
60,n1,temp,50,true,celsius
60,n2,temp,,true,celsius
30,n1,temp,49,false,celsius
"""
LONG_MAPPING = """
[times]
unit = "s"
origin = "2026-01-01"
[events.columns]
t_event = "second"
[telemetry]
file = "long.csv"
layout = "long"
columns = {t_event = "at"}
"""
HEAD = "time,component,kind"
SECONDS = "second,component,kind\n1,n1,x\n90,n1,x\n"


def utc(day: int, hour: int = 0, minute: int = 0) -> int:
    return int(datetime(2026, 1, day, hour, minute, tzinfo=UTC).timestamp()) * SECOND_NS


def imported(folder: Path, mapping: str = "", **files: str) -> Bundle:
    """Write the files, import ``events.csv``, and open what came of it."""
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    (folder / "map.toml").write_text(mapping)
    out = folder / "out.tltrace"
    import_csv(folder / "events.csv", out, map=folder / "map.toml" if mapping else None, force=True)
    assert validate(out).faults == ()
    return Bundle.open(out)


def test_time_component_and_kind_are_enough(tmp_path):
    opened = imported(tmp_path, events="time,component,kind\n2026-01-01,n1,x\n2026-01-02,n1,x\n")
    first, second = opened.events()
    assert (first.t_event, first.t_avail, first.component) == (utc(1), utc(1), "n1")
    assert (first.fatal, first.t_resolved, first.follows) == (True, None, "unknown")
    assert (first.id, second.id) == ("events-2", "events-3")
    assert (opened.manifest.start_ns, opened.manifest.end_ns) == (utc(1), utc(2))
    assert (opened.manifest.name, opened.manifest.source) == ("out", "events.csv")
    assert not opened.manifest.synthetic


def test_times_are_utc_without_an_offset_and_unknown_columns_stay(tmp_path):
    first, second, third = imported(tmp_path, events=PLAIN).events()
    assert (first.t_event, first.t_resolved, first.extra) == (utc(1), utc(1, 10), {"slot": "4"})
    assert (second.t_event, second.kind, second.extra) == (utc(2), "hang", {})
    assert (third.t_event, third.kind, third.t_resolved) == (utc(3, 10), "nic, left", None)
    assert (first.id, second.id, third.id) == ("events-2", "events-5", "events-3")


@pytest.mark.parametrize(
    ("header", "warnings"),
    [
        ("resolvd", ["'resolvd' is stored as an extra column; did you mean 'resolved'?"]),
        ("RESOLVED", ["'RESOLVED' is stored as an extra column; did you mean 'resolved'?"]),
        ("t_resolvd", ["'t_resolvd' is stored as an extra column; did you mean 't_resolved'?"]),
        ("slot", []),
        ("kinds", []),
    ],
)
def test_a_column_almost_named_like_a_known_one_gets_a_warning(tmp_path, caplog, header, warnings):
    """Not where the one it resembles is there: ``kinds`` beside ``kind`` is no slip."""
    text = f"time,component,kind,{header}\n2026-01-01,n1,x,a\n2026-01-02,n1,x,b\n"
    first, _ = imported(tmp_path, events=text).events()
    assert first.extra == {header: "a"}
    assert caplog.messages == [f"{tmp_path}/events.csv:1: column {line}" for line in warnings]


def test_every_column_of_an_event_can_be_given(tmp_path):
    text = (
        "id,t_event,t_avail,component,kind,code,severity,fatal,cause,follows,t_resolved,label\n"
        "e1,2026-01-01,2026-01-02,n1,x,c,high,false,e0,job,2026-01-03,uncertain\n"
        "e0,2026-01-01,2026-01-02,n1,x,c,high,TRUE,,fabric,,certain\n"
    )
    second, first = imported(tmp_path, events=text).events()
    assert (first.id, first.t_avail, first.fatal, first.cause) == ("e1", utc(2), False, "e0")
    assert (first.follows, first.label, first.extra) == ("job", "uncertain", {})
    assert (second.id, second.fatal, second.follows) == ("e0", True, "fabric")


def test_a_trace_has_the_name_of_its_bundle_unless_the_mapping_or_the_caller_sets_one(tmp_path):
    """Two months of one source, under one name, would be one trace to a model."""
    assert imported(tmp_path, events=PLAIN).manifest.name == "out"
    assert imported(tmp_path, "name = 'fleet 2026'\n", events=PLAIN).manifest.name == "fleet 2026"
    events, mapping = tmp_path / "events.csv", tmp_path / "map.toml"
    mapping.write_text("name = 'fleet 2026'\n")
    import_csv(events, tmp_path / "a.b.tltrace", map=mapping, name="mine")
    assert Bundle.open(tmp_path / "a.b.tltrace").manifest.name == "mine"


def test_a_mapping_may_use_the_short_names(tmp_path):
    mapping = '[events]\ncolumns = {time = "when", component = "host", resolved = "back"}\n'
    text = "when,host,back,kind\n2026-01-01,n1,2026-01-02,ecc\n"
    (event,) = imported(tmp_path, mapping, events=text).events()
    assert (event.t_event, event.component, event.t_resolved) == (utc(1), "n1", utc(2))


def test_names_units_and_constants_come_from_a_mapping(tmp_path):
    mapping = """
    [times]
    unit = "days"
    origin = "2026-01-01"
    end = 31
    [events]
    columns = {t_event = "day", component = "host", t_resolved = "back"}
    constants = {kind = "xid", follows = "component", fatal = false}
    """
    text = "day,host,back,kind\n0.5,n1,1.25,\n2,n2,,ecc\n"
    opened = imported(tmp_path, mapping, events=text)
    first, second = opened.events()
    assert (first.t_event, first.t_resolved) == (utc(1, 12), utc(2, 6))
    assert (first.kind, first.follows, first.fatal) == ("xid", "component", False)
    assert second.kind == "ecc"
    assert opened.manifest.end_ns == utc(1) + 31 * 86_400 * SECOND_NS


@pytest.mark.parametrize(
    ("unit", "origin", "cell", "expected"),
    [
        ("ns", "1970-01-01", "1767225600000000001", 1_767_225_600_000_000_001),
        ("s", "1970-01-01", "1767225600", utc(1)),
        ("s", "2026-01-01T00:00:00+01:00", "3600.25", utc(1) + SECOND_NS // 4),
        ("iso8601", "1970-01-01", "2026-01-01T00:00:00.000000007Z", utc(1) + 7),
        ("days", "0001-01-01", "739616", utc(1)),
        ("days", "0001-01-01", "739616.25", utc(1, 6)),
    ],
)
def test_times_are_exact(tmp_path, unit, origin, cell, expected):
    mapping = f'[times]\nunit = "{unit}"\norigin = "{origin}"\n'
    later = {"iso8601": "2026-02-01", "ns": "1767225700000000000", "days": "739617"}.get(
        unit, "1767225700"
    )
    text = f"time,component,kind\n{cell},n1,x\n{later},n1,x\n"
    assert imported(tmp_path, mapping, events=text).events()[0].t_event == expected


def test_a_duplicate_row_is_used_once_with_a_warning(tmp_path, caplog):
    text = (
        "time,component,kind,resolved,slot\n"
        "2026-01-01,n1,x,2026-01-02,4\n"
        "2026-01-01T00:00Z,n1,x,2026-01-02,4\n"
        "2026-01-01,n1,x,2026-01-02,5\n"
        "2026-01-01,n1,x,,4\n"
        "2026-01-01,n1,x,2026-01-02,4\n"
    )
    opened = imported(tmp_path, events=text)
    assert [event.id for event in opened.events()] == ["events-2", "events-4", "events-5"]
    warning = "events.csv: duplicate rows left out: 2"
    assert opened.manifest.notes == warning
    assert caplog.messages == [warning]


def test_a_topology_lists_the_watched_components(tmp_path):
    mapping = f'[times]\n{WATCHED}[topology]\nfile = "topology.csv"\n'
    opened = imported(tmp_path, mapping, events=PLAIN, topology=TOPOLOGY)
    assert opened.topology() == (
        Component(id="r0", kind="rack"),
        Component(id="n1", kind="node", parents=("r0",), gpus=8),
        Component(id="n2", kind="node", parents=("r0", "r0"), gpus=8),
    )
    assert opened.manifest.exposure["node"].component_days == 62.0


def test_a_wide_table_has_a_column_a_metric(tmp_path):
    mapping = '[telemetry]\nfile = "wide.csv"\nload_dependent = ["power"]\n'
    opened = imported(tmp_path, mapping, events=PLAIN, wide=WIDE)
    rows = pa.concat_tables(opened.telemetry()).to_pandas()
    assert rows["t_avail"].tolist() == [utc(1, 0, 5)] * 2 + [utc(1, 0, 10)] * 4
    assert rows["component"].tolist() == ["n2", "n2", "n1", "n1", "n2", "n2"]
    assert rows["metric"].tolist() == ["temp", "power"] * 3
    assert rows["valid"].tolist() == [True, False, True, True, False, True]
    assert rows["value"][rows["valid"]].tolist() == [51, 50, 300, 300]
    assert opened.manifest.load_dependent == ("power",)


def test_only_the_metrics_that_are_named_are_taken(tmp_path):
    mapping = '[telemetry]\nfile = "wide.csv"\nmetrics = ["temp"]\n'
    assert imported(tmp_path, mapping, events=PLAIN, wide=WIDE).metrics == ("temp",)


def test_a_long_table_has_a_row_a_value_and_keeps_its_other_columns(tmp_path):
    opened = imported(tmp_path, LONG_MAPPING, events=SECONDS, long=LONG)
    (rows,) = opened.telemetry()
    assert rows["t_event"].to_pylist() == [utc(1) + at * SECOND_NS for at in (30, 60, 60)]
    assert rows["valid"].to_pylist() == [False, True, False]
    assert rows["unit"].to_pylist() == ["celsius"] * 3


@pytest.fixture
def in_parts(monkeypatch):
    """Have tables read two rows at a time, and telemetry written three values at a time."""
    monkeypatch.setattr("torchloom_core.lab.trace.importers.tables.PART_ROWS", 2)
    monkeypatch.setattr("torchloom_core.lab.trace.importers.csv_telemetry._TABLE_VALUES", 3)


@pytest.mark.parametrize("layout", ["wide", "long"])
def test_a_table_that_is_read_in_parts_is_the_same_bundle(tmp_path, request, layout):
    mapping = LONG_MAPPING if layout == "long" else "[telemetry]\nfile = 'wide.csv'\n"
    tables = {
        "events": PLAIN if layout == "wide" else SECONDS,
        "wide": WIDE + "\n\n\n2026-01-01T00:00:00,n3,1,-inf\n",
        "long": LONG + "\n20,n3,power,3,1,watt\n90,n1,temp,inf,1,\n",
    }
    whole = imported(tmp_path, mapping, **tables)
    rows = pa.concat_tables(whole.telemetry()).to_pandas()
    request.getfixturevalue("in_parts")
    parts = imported(tmp_path, mapping, **tables)
    pd.testing.assert_frame_equal(pa.concat_tables(parts.telemetry()).to_pandas(), rows)
    assert len(rows) == {"wide": 8, "long": 5}[layout]


@pytest.mark.slow
def test_faults_have_their_row_in_every_part(tmp_path, in_parts):
    mapping = "[topology]\nfile = 'topology.csv'\n[telemetry]\nfile = 'wide.csv'\n"
    tables = {"events": PLAIN, "topology": "id,kind\nn1,node\nn2,node\n"}
    row = "2026-01-01T00:10:00,n1,{}\n"
    wide = "time,component,temp\n" + "".join(map(row.format, ["1", "2", "", "hot", "5", "x"]))
    assert refusal(tmp_path, mapping, **tables, wide=wide) == [
        "wide.csv:5: need a number for temp, was 'hot'",
        "wide.csv:7: need a number for temp, was 'x'",
        "2 errors in all",
    ]
    wide = "time,component,temp\n" + "2026-01-02,n1,5\n" * 3 + "2026-01-03,n3,5\n" * 2
    assert refusal(tmp_path, mapping, **tables, wide=wide) == [
        "wide.csv:5: need a component of the topology, was 'n3'",
        "wide.csv:6: need a component of the topology, was 'n3'",
        "2 errors in all",
    ]
    wide = "time,component,temp\n" + "".join(f"{at},n1,5\n" for at in range(5))
    (line,) = refusal(tmp_path, mapping, **tables, wide=wide)
    assert line.startswith("wide.csv:2: need an ISO 8601 time")
    assert "was '0' (and numbers in 4 more rows)" in line
    wide = "time,component,temp\n" + "2026-01-01,n1,5\n" * 4 + "2026-01-01,n1,5,6\n"
    assert refusal(tmp_path, mapping, **tables, wide=wide) == [
        "wide.csv:6: need 3 cells as in the header, was 4"
    ]


def test_telemetry_can_be_parquet_with_real_times(tmp_path):
    frame = pd.DataFrame(
        {
            "time": [pd.Timestamp(2026, 1, 1), pd.Timestamp(2026, 1, 2)],
            "component": "n1",
            "x": [1, 2],
        }
    )
    frame.to_parquet(tmp_path / "m.parquet")
    opened = imported(tmp_path, '[telemetry]\nfile = "m.parquet"\n', events=PLAIN)
    (rows,) = opened.telemetry()
    assert rows["t_event"].to_pylist() == [utc(1), utc(2)]
    assert rows["value"].to_pylist() == [1.0, 2.0]


def test_a_day_without_its_hyphens_is_a_time(tmp_path):
    text = "time,component,kind\n20260101,n1,x\n20260102T06,n1,x\n"
    first, second = imported(tmp_path, events=text).events()
    assert (first.t_event, second.t_event) == (utc(1), utc(2, 6))


# --- what lies outside the span ---


def clipped(folder: Path, caplog: pytest.LogCaptureFixture, mapping: str, **files: str) -> Bundle:
    """Return the imported bundle; the manifest's notes repeat what was printed to stderr."""
    opened = imported(folder, mapping, **files)
    assert opened.manifest.notes.splitlines() == caplog.messages
    return opened


def days_of(opened: Bundle) -> list[float]:
    return [(event.t_event - utc(1)) / (86_400 * SECOND_NS) for event in opened.events()]


DAILY = "time,component,temp\n" + "".join(f"2026-01-0{day},n1,50\n" for day in range(2, 6))
"""Up to 5 January."""
OF_DAYS = (
    "daily.csv: all rows are dated midnight and count as available then; if a row covers the day "
    "after, add a column 'available'"
)


def test_events_after_the_telemetry_ends_are_left_out_with_a_warning(tmp_path, caplog):
    """Not one of its last interval, nor one from before it: those were to be seen coming."""
    hours = ("01T00", "05T20", "06T00", "06T01", "08T00", "09T00")
    events = "time,component,kind\n" + "".join(f"2026-01-{hour},n1,x\n" for hour in hours)
    mapping = "[telemetry]\nfile = 'daily.csv'\n"
    opened = clipped(tmp_path, caplog, mapping, events=events, daily=DAILY)
    assert days_of(opened) == [0, 4 + 20 / 24, 5]
    assert (opened.manifest.start_ns, opened.manifest.end_ns) == (utc(1), utc(6))
    assert caplog.messages == [
        "events.csv: events after the telemetry ends, 2026-01-05, left out: 3 (rows 5, 6, 7); "
        "set times.end in a mapping to include them",
        OF_DAYS,
    ]
    caplog.clear()
    mapping += "[times]\nend = '2026-01-10'\n"
    assert len(clipped(tmp_path, caplog, mapping, events=events, daily=DAILY).events()) == 6
    assert caplog.messages == [OF_DAYS]


def test_components_without_telemetry_are_warned_of(tmp_path, caplog):
    hours = [f"2026-01-01T{hour:02}:30" for hour in range(24)]
    tables = {
        "events": "time,component,kind\n2026-01-01T01:00,n1,x\n",
        "topology": "id,kind\nr1,rack\nn1,node\nn2,node\nn6,node\n",
        "hourly": "time,component,temp\n"
        + "".join(f"{at},{name},50\n" for at in hours for name in ("n1", "n2")),
    }
    mapping = "[topology]\nfile = 'topology.csv'\n[telemetry]\nfile = 'hourly.csv'\n"
    clipped(tmp_path, caplog, mapping, **tables)
    assert caplog.messages == [
        "hourly.csv: 1 component of the topology without telemetry (n6): components without "
        "telemetry are treated as healthy until they fail",
    ]


def test_rows_outside_the_span_are_left_out_with_a_warning(tmp_path, caplog):
    events = (
        "time,component,kind,available\n2026-01-01,n1,x,\n2026-01-03,n1,x,2026-01-05\n"
        "2026-01-03,n1,y,\n" + "".join(f"2026-01-{day},n1,x,\n" for day in range(10, 18))
    )
    mapping = "[times]\nstart = '2026-01-02'\nend = '2026-01-04'\n"
    mapping += "[telemetry]\nfile = 'daily.csv'\n"
    opened = clipped(tmp_path, caplog, mapping, events=events, daily=DAILY)
    assert [event.kind for event in opened.events()] == ["y"]
    (rows,) = opened.telemetry()
    assert rows["t_event"].to_pylist() == [utc(2), utc(3), utc(4)]
    assert (opened.manifest.start_ns, opened.manifest.end_ns) == (utc(2), utc(4))
    assert caplog.messages == [
        "events.csv: events before times.start, 2026-01-02, left out: 1 (row 2)",
        "events.csv: events after times.end, 2026-01-04, left out: 9 "
        "(rows 3, 5, 6, 7, 8 and 4 more)",
        "daily.csv: telemetry outside times.start and times.end, left out: 1 (row 5)",
    ]


# --- what cannot be ---


def test_numbers_without_a_unit_are_one_fault_that_shows_how_to_set_it(tmp_path):
    """To pandas 1800 and 2100 are years."""
    fault = (
        "need an ISO 8601 time (or times.unit in a mapping), was '{}' (and numbers in {} more "
        'rows): set unit = "s" (or "days" or "ns") under [times] in a file for --map, and origin '
        "to the time at 0"
    )
    events = "time,component,kind\n2026-01-01,n1,x\n1800,n1,x\n2100,n1,x\n1e3,n1,x\n"
    assert refusal(tmp_path, events=events) == [f"events.csv:3: {fault.format('1800', 2)}"]
    wide = "time,component,temp\n0,n1,50\n30.5,n1,51\n"
    mapping = "[telemetry]\nfile = 'wide.csv'\n"
    assert refusal(tmp_path, mapping, events=PLAIN, wide=wide) == [
        f"wide.csv:2: {fault.format('0', 1)}"
    ]
    frame = pd.DataFrame({"time": [1800, 2100], "component": "n1", "x": [1, 2]})
    frame.to_parquet(tmp_path / "m.parquet")
    lines = refusal(tmp_path, "[telemetry]\nfile = 'm.parquet'\n", events=PLAIN)
    assert lines == [f"m.parquet:2: {fault.format('1800', 1)}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"events\.csv: need a header, was an empty file"),
        (f"{HEAD}\n", r"events\.csv: need an event or telemetry, was none"),
        (
            "time,kind\n2026-01-01,x\n",
            r":1: need a column 'component', or a mapping for it, was none",
        ),
        ("component,kind\nn1,x\n", r":1: need a column 'time', or a mapping for it, was none"),
        (f"{HEAD}\nsoon,n1,x\n", r":2: need an ISO 8601 time .*, was 'soon'"),
        (f"{HEAD}\n\n3.5,n1,x\n", r":3: need an ISO 8601 time .*, was '3\.5'"),
        (f"{HEAD}\nnow,n1,x\n", r":2: need an ISO 8601 time .*, was 'now'"),
        (
            f"{HEAD}\n9999-12-31,n1,x\n",
            r":2: need a time in the years 1678 to 2261, was '9999-12-31'",
        ),
        (f"{HEAD}\n2026-01-01,,x\n", r":2: need a 'component', was an empty cell"),
        (f"{HEAD}\n,n1,x\n", r":2: need a 'time', was an empty cell"),
        (f"{HEAD}\n2026-01-01,n1,x\n2026-01-01,n1,x,y\n", r":3: need 3 cells"),
        (f"{HEAD}\n2026-01-01,n1,x,y\n", r":2: need 3 cells as in the header, was 4"),
        (f"{HEAD},fatal\n2026-01-01,n1,x,maybe\n", r":2: need fatal of type bool, was 'maybe'"),
        (
            f"{HEAD},follows\n2026-01-01,n1,x,me\n",
            r":2: need follows one of component, job, fabric, unknown, was 'me'",
        ),
        (
            f"{HEAD},id\n2026-01-01,n1,x,e\n2026-01-02,n1,x,e\n",
            r":3: need a unique id, was 'e' again",
        ),
        (
            f"{HEAD},id\n2026-01-01,n1,x,{'a' * 5000}\n2026-01-02,n1,x,{'a' * 5000}\n",
            r":3: need a unique id, was 'a{59} again$",
        ),
        (
            f"{HEAD}\n{'a' * 5000},n1,x\n2026-01-02,n1,x\n",
            r":2: need an ISO 8601 time \(or times.unit in a mapping\), was 'a{59}$",
        ),
        (
            f"{HEAD},available\n2026-01-02,n1,x,2026-01-01\n2026-01-03,n1,x,\n",
            ":2: need t_avail >= t_event 2026-01-02, was 2026-01-01",
        ),
        (
            f"{HEAD},resolved\n2026-01-03,n1,x,\n2026-01-02,n1,x,2026-01-01\n",
            ":3: need t_resolved >= t_event 2026-01-02, was 2026-01-01",
        ),
        (
            f"{HEAD}\n2026-01-02,n1,x\n",
            r"need an end after the start \(times\.start and times\.end in a mapping\)",
        ),
        (
            f"{HEAD}\n1677-09-22,n1,x\n2026-01-02,n1,x\n",
            r"events\.csv: need a span in the years 1824 to 2115, was 1677-09-22 to 2026-01-02$",
        ),
    ],
)
def test_a_row_that_cannot_be_is_named(tmp_path, text, message):
    with pytest.raises(TraceError, match=message):
        imported(tmp_path, events=text)
    assert not (tmp_path / "out.tltrace").exists()


def refusal(folder: Path, mapping: str = "", **files: str) -> list[str]:
    """Return the lines that an import is refused with, without the folder."""
    with pytest.raises(TraceError) as refused:
        imported(folder, mapping, **files)
    assert not (folder / "out.tltrace").exists()
    return str(refused.value).replace(f"{folder}/", "").splitlines()


def test_all_invalid_rows_are_reported_file_by_file(tmp_path):
    mapping = "[topology]\nfile = 'topology.csv'\n[telemetry]\nfile = 'wide.csv'\n"
    events = "time,component,kind,fatal\n2026-01-01,n1,x,maybe\nsoon,n1,x,\n2026-01-02,,x,\n"
    topology = "id,kind,gpus\nn1,node,many\n"
    wide = "time,component,temp\n2026-01-01,n1,hot\nlate,n1,50\n"
    assert refusal(tmp_path, mapping, events=events, topology=topology, wide=wide) == [
        "events.csv:2: need fatal of type bool, was 'maybe'",
        "events.csv:3: need an ISO 8601 time (or times.unit in a mapping), was 'soon'",
        "events.csv:4: need a 'component', was an empty cell",
        "topology.csv:2: need gpus of type int, was 'many'",
        "wide.csv:2: need a number for temp, was 'hot'",
        "wide.csv:3: need an ISO 8601 time (or times.unit in a mapping), was 'late'",
        "6 errors in all",
    ]


def test_a_parent_without_a_row_is_one_fault_of_the_first_that_names_it(tmp_path):
    mapping = "[topology]\nfile = 'topology.csv'\n"
    topology = "id,kind,parent\nn1,node,r2\nn2,node,r1; r1\nn3,node,r1\nn4,node,r1; r2\n"
    topology += "n5,node,r3; r3\n"
    add = "add a row for it, with its kind: rack, node, switch"
    assert refusal(tmp_path, mapping, events=PLAIN, topology=topology) == [
        f"topology.csv:2: need parents of the topology, was 'r2', named by 2 components; {add}",
        f"topology.csv:3: need parents of the topology, was 'r1', named by 3 components; {add}",
        f"topology.csv:6: need parents of the topology, was 'r3'; {add}",
        "3 errors in all",
    ]


def test_of_many_faults_the_first_ten_and_the_total_are_reported(tmp_path):
    events = "time,component,kind,fatal\n" + "soon,n1,x,maybe\n" * 3
    events += "".join(f"soon,n1,x{number},\n" for number in range(497))
    lines = refusal(tmp_path, events=events)
    rows = [int(line.split(":")[1]) for line in lines[:-1]]
    assert rows == [2, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert lines[-1] == "501 errors in all"


def packed(suffix: str, data: bytes) -> bytes:
    """Return the data in a file of a name with that suffix."""
    if suffix == ".gz":
        return gzip.compress(data)
    if suffix == ".xz":
        return lzma.compress(data)
    if suffix == ".bz2":
        return bz2.compress(data)
    made = io.BytesIO()
    if suffix == ".zip":
        with zipfile.ZipFile(made, "w") as archive:
            archive.writestr("events.csv", data)
    else:
        with tarfile.open(fileobj=made, mode="w") as tar:
            member = tarfile.TarInfo("events.csv")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return made.getvalue()


PACKED = [".gz", ".xz", ".bz2", ".zip", ".tar"]


@pytest.mark.parametrize("suffix", PACKED)
def test_a_compressed_table_is_read(tmp_path, suffix):
    path = tmp_path / f"events.csv{suffix}"
    path.write_bytes(packed(suffix, PLAIN.encode()))
    import_csv(path, tmp_path / "out.tltrace")
    assert len(Bundle.open(tmp_path / "out.tltrace").events()) == 3


@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize("how", ["cut", "damaged", "not"])
def test_a_compressed_table_that_was_cut_or_damaged_is_one_line(tmp_path, suffix, how):
    data = packed(suffix, PLAIN.encode())
    at = 20 if suffix == ".tar" else len(data) // 2
    broken = {
        "cut": data[:at],
        "damaged": data[: at - 8] + b"\xff\xfe\x00\x07" * 4 + data[at + 8 :],
        "not": PLAIN.encode(),
    }[how]
    if (suffix, how) == (".tar", "damaged"):  # a name that no longer sums up
        broken = b"\xff" + data[1:]
    path = tmp_path / f"events.csv{suffix}"
    path.write_bytes(broken)
    with pytest.raises(TraceError) as refused:
        import_csv(path, tmp_path / "out.tltrace")
    message = str(refused.value)
    assert message.startswith(f"{path}: cannot be read: ")
    assert "\n" not in message


def test_a_table_with_an_open_quote_is_refused_with_its_row(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text(PLAIN + '2026-01-09,n1,"x\n')
    with pytest.raises(TraceError) as refused:
        import_csv(path, tmp_path / "out.tltrace")
    reason = "need a closing quote for the cell in row 6, was none"
    assert str(refused.value) == f"{path}: cannot be read: {reason}"


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ("[times]\nunit = 'weeks'\n", r"map\.toml:2: times\.unit"),
        ("[tiems]\n", r"map\.toml:1: .*tiems"),
        ("[times\n", r"map\.toml:1: not valid TOML"),
        ("[times]\norigin = 'x'\nunit = 's'\n", "need times.origin as ISO 8601"),
        ("[times]\nstart = 'x'\n", r"times\.start: need an ISO 8601 time"),
        ("[times]\nend = '9999-12-31'\n", r"times\.end: need a time in the years 16"),
        (
            "[times]\nstart = '2027-01-01'\n",
            r"events\.csv: need an event in the span, was none; events\.csv: events before "
            r"times\.start, 2027-01-01, left out: 3 \(rows 2, 3, 5\)",
        ),
        (
            "[telemetry]\nfile = 'long_ago.csv'\n",
            "need an event in the span, was none; .* after the telemetry ends, 2025-01-01, left",
        ),
        ("[times]\nstart = '2026-01-02'\nend = '2026-01-01'\n", "need an end after the start"),
        (
            "[events.columns]\nt_evnt = 'time'\n",
            "a bundle has no column 't_evnt'; did you mean t_event",
        ),
        (
            "[events.columns]\nkind = 'knid'\n",
            r"events\.csv:1: need a column 'knid' for kind, was none; did you mean kind",
        ),
        (
            "[events.columns]\ncomponent = 'slot'\n",
            r"events\.csv:1: need one column for component, was 'slot' \(by the mapping\) and 'c",
        ),
        ("[topology]\nfile = 'none.csv'\n", r"none\.csv: cannot be read"),
        ('[topology]\nfile = "a\\nb"\n', r"toml: need topology.file in one line, was 'a"),
        (
            "[topology]\nfile = 'topology.csv'\n",
            r"events\.csv:3: need a component of the topology, was 'n2'",
        ),
        ("[topology]\nfile = 'blank.csv'\n", r"blank\.csv:3: need a 'kind', was an em"),
        (
            "[telemetry]\nfile = 'nobody.csv'\n",
            r"nobody\.csv:2: need a 'component', was an empty cell",
        ),
        ("[topology]\nfile = 'circle.csv'\n", r"circle\.csv:2: need parents without a"),
        ("[telemetry]\nfile = 'bad.csv'\n", r"bad\.csv:3: need a number for temp, was 'hot'"),
        (
            "[telemetry]\nfile = 'early.csv'\n",
            r"early\.csv:2: need t_avail >= t_event, was 2026-01-01",
        ),
        (
            "[telemetry]\nfile = 'wide.csv'\n[topology]\nfile = 'events_only.csv'\n",
            r"wide\.csv:5: need a component of the topology, was 'n3'",
        ),
        (
            "[telemetry]\nfile = 'wide.csv'\nmetrics = ['volt']\n",
            r"wide\.csv:1: need a column 'volt'",
        ),
        ("[telemetry]\nfile = 'bare.csv'\n", r"bare\.csv:1: need a metric column, was none"),
        ("[telemetry]\nfile = 'wide.csv'\nlayout = 'long'\n", "need a column 'metric'"),
        (
            "[telemetry]\nfile = 'a_value_a_row.csv'\n",
            r"row\.csv:1: need telemetry\.layout = 'long' in the mapping, as the column 'metric'",
        ),
    ],
)
def test_a_mapping_that_cannot_be_is_named(tmp_path, mapping, message):
    with pytest.raises((ConfigError, TraceError), match=message):
        imported(
            tmp_path,
            mapping,
            events=PLAIN,
            topology="id,kind\nn1,node\n",
            blank="id,kind\nn1,node\nn2,\n",
            nobody="time,component,temp\n2026-01-01,,5\n",
            circle="id,kind,parent\nn1,node,n2\nn2,node,n1\n",
            events_only="id,kind\nn1,node\nn2,node\n",
            wide=WIDE + "2026-01-01T00:10:00,n3,1,1\n",
            bad="time,component,temp\n2026-01-01,n1,5\n2026-01-01,n1,hot\n",
            early="time,available,component,temp\n2026-01-02,2026-01-01,n1,5\n",
            bare="time,component\n2026-01-01,n1\n",
            a_value_a_row="time,component,metric,value\n2026-01-01,n1,,5\n2026-01-01,n1,temp,5\n",
            long_ago="time,component,temp\n2025-01-01,n1,5\n",
        )
    assert not (tmp_path / "out.tltrace").exists()


# --- what may be meant otherwise ---

LOG = "time,component,kind,severity\n2026-01-01,n1,login,INFO\n2026-01-02,n1,xid,FATAL\n"


def test_events_of_several_severities_that_all_count_as_fatal_are_warned_of(tmp_path, caplog):
    bundle = imported(tmp_path, events=LOG)
    assert all(event.fatal for event in bundle.events())
    (line,) = caplog.messages
    assert line == (
        "events.csv: all 2 events count as fatal, whatever their severity (FATAL, INFO): "
        "set events.fatal_if in a mapping, or add a column 'fatal'"
    )
    assert line in bundle.manifest.notes


def test_a_mapping_selects_the_fatal_events(tmp_path, caplog):
    bundle = imported(tmp_path, '[events.fatal_if]\nseverity = ["FATAL"]\n', events=LOG)
    assert [event.fatal for event in bundle.events()] == [False, True]
    assert not caplog.messages


def test_a_row_that_makes_the_trace_decades_long_is_warned_of(tmp_path, caplog):
    events = "time,component,kind\n2026-01-04,n1,x\n2062-01-05,n1,x\n"
    imported(tmp_path, events=events)
    assert caplog.messages == [
        "events.csv: the times are from 2026-01-04 to 2062-01-05: check for typing "
        "errors, or set times.start and times.end in a mapping"
    ]


def test_numbers_read_as_the_first_years_after_1970_are_warned_of(tmp_path, caplog):
    events = "time,component,kind\n1700000000,n1,x\n1700086400,n1,x\n"
    imported(tmp_path, '[times]\nunit = "ns"\n', events=events)
    (line,) = caplog.messages
    assert "the times are from 1970-01-01" in line
    assert "numbers are read as ns since 1970; if that is wrong, set times.unit" in line


def test_a_component_that_fails_and_has_no_telemetry_is_named(tmp_path, caplog):
    mapping = '[telemetry]\nfile = "wide.csv"\n'
    events = "time,component,kind\n2026-01-01T00:06:00,n3,x\n2026-01-01T00:07:00,n1,x\n"
    imported(tmp_path, mapping, events=events, wide=WIDE)
    assert "events.csv: 1 component with events but no telemetry: n3" in caplog.messages


def test_truth_values_of_a_metric_are_1_and_0_however_they_are_written(tmp_path):
    mapping = '[telemetry]\nfile = "up.csv"\n'
    up = "time,component,up\n2026-01-01,n1,True\n2026-01-02,n1,FALSE\n2026-01-03,n1,\n"
    (table,) = imported(tmp_path, mapping, events=PLAIN, up=up).telemetry()
    assert table["value"].to_pylist()[:2] == [1.0, 0.0]
    assert table["valid"].to_pylist() == [True, True, False]


def test_a_cell_of_valid_that_is_neither_true_nor_false_is_refused(tmp_path):
    mapping = '[telemetry]\nfile = "long.csv"\nlayout = "long"\n'
    long = "time,component,metric,value,valid\n2026-01-01,n1,t,1,1.0\n2026-01-02,n1,t,2,yes\n"
    assert refusal(tmp_path, mapping, events=PLAIN, long=long) == [
        "long.csv:3: need true or false for valid, was 'yes'"
    ]
    (table,) = imported(tmp_path, mapping, events=PLAIN, long=long.replace("yes", "")).telemetry()
    assert table["valid"].to_pylist() == [True, False]


def test_a_table_that_might_never_end_or_cannot_be_unpacked_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(TraceError, match=r"pipe\.csv: cannot be read: Not a regular file$"):
        import_csv(tmp_path / "pipe.csv", tmp_path / "f.tltrace")
    with zipfile.ZipFile(tmp_path / "f.csv.zip", "w") as packed:
        packed.writestr("f.csv", PLAIN)
    data = bytearray((tmp_path / "f.csv.zip").read_bytes())
    data[6] = data[data.index(b"PK\x01\x02") + 8] = 0x20  # compressed patched data
    (tmp_path / "f.csv.zip").write_bytes(data)
    with pytest.raises(TraceError, match=r"f\.csv\.zip: cannot be read: "):
        import_csv(tmp_path / "f.csv.zip", tmp_path / "f.tltrace")
    (tmp_path / "f.csv.zst").write_bytes(b"damaged")
    with pytest.raises(TraceError, match=r"f\.csv\.zst: cannot be read: (?!None)"):
        import_csv(tmp_path / "f.csv.zst", tmp_path / "f.tltrace")
