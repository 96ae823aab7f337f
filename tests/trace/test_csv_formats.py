"""CSV files as others write them: delimiters, encodings, time zones, marks for nothing."""

import gzip
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import ConfigError, TraceError
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.importers.csv_trace import import_csv

EVENTS = "time,component,kind,resolved\n2026-01-01,n1,köln,2026-01-03\n2026-01-02,n1,x,\n"
TELEMETRY = "[telemetry]\nfile = 'wide.csv'\n"


def imported(folder, data, mapping="", **files):
    """Import a file of events, of text or bytes, beside others that the mapping names."""
    for name, text in ({"events": data} | files).items():
        (folder / f"{name}.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    (folder / "map.toml").write_text(mapping)
    out = folder / "out.tltrace"
    import_csv(folder / "events.csv", out, map=folder / "map.toml", force=True)
    return Bundle.open(out)


def values(bundle):
    return [value for table in bundle.telemetry() for value in table["value"].to_pylist()]


def when(event):
    return datetime.fromtimestamp(event.t_event / SECOND_NS, ZoneInfo("UTC"))


@pytest.mark.parametrize(("mark", "named"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_a_delimiter_is_detected_or_set_in_the_mapping(tmp_path, caplog, mark, named):
    text = EVENTS.replace(",", mark)
    found = imported(tmp_path, text)
    warning = f"events.csv: delimiter detected: {named}"
    assert (len(found.events()), found.manifest.notes) == (2, warning)
    assert caplog.messages == [warning]
    mapped = imported(tmp_path, text, f"[csv]\ndelimiter = {mark!r}\n".replace("'", '"'))
    assert (mapped.events(), mapped.manifest.notes) == (found.events(), "")
    with pytest.raises(TraceError, match=r"events.csv:1: need the delimiter ':', was '"):
        imported(tmp_path, text, "[csv]\ndelimiter = ':'\n")
    with pytest.raises(ConfigError, match=r"need csv.delimiter of one character, .*, was 'tab'"):
        imported(tmp_path, text, "[csv]\ndelimiter = 'tab'\n")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_byte_order_mark_sets_the_encoding(tmp_path, encoding, pack):
    path = tmp_path / ("events.csv.gz" if pack is gzip.compress else "events.csv")
    path.write_bytes(pack(EVENTS.encode(encoding)))
    import_csv(path, tmp_path / "out.tltrace")
    assert Bundle.open(tmp_path / "out.tltrace").events()[0].kind == "köln"


def test_another_encoding_is_named_in_the_mapping_and_else_refused_with_byte_and_line(tmp_path):
    data = (EVENTS.replace("köln", "x") + "2026-01-04,n1,köln,\n").encode("cp1252")
    with pytest.raises(TraceError, match=r"events.csv:4: need UTF-8, was the byte 0xf6: .*\[csv\]"):
        imported(tmp_path, data)
    assert imported(tmp_path, data, "[csv]\nencoding = 'cp1252'\n").events()[2].kind == "köln"
    with pytest.raises(ConfigError, match=r"need csv.encoding with an encoding of Python"):
        imported(tmp_path, data, "[csv]\nencoding = 'cp9'\n")


def test_times_without_an_offset_are_of_the_zone_and_unclear_hours_are_named(tmp_path):
    mapping = "[times]\nzone = 'Europe/Berlin'\nstart = '2026-03-01'\n"
    rows = ["2026-03-29T01:59:00", "2026-03-29T03:00", "2026-10-25 02:30:00+01:00"]
    rows += ["2026-10-25T01:00:00Z", "2026-11-01 00:00:00 UTC", "2026-11-02"]
    text = "time,component,kind\n" + "".join(f"{time},n1,x\n" for time in rows)
    events = imported(tmp_path, text, mapping).events()
    hours = [(when(event).day, when(event).hour, when(event).minute) for event in events]
    assert hours == [(29, 0, 59), (29, 1, 0), (25, 1, 0), (25, 1, 30), (1, 0, 0), (1, 23, 0)]
    text += "2026-10-25 02:30:00,n1,x\n2026-03-29T02:30:00,n1,x\n"
    with pytest.raises(TraceError) as refused:
        imported(tmp_path, text, mapping)
    assert [line.rpartition("/")[2] for line in str(refused.value).splitlines()] == [
        "Berlin had this hour twice, was '2026-10-25 02:30:00'",
        "Berlin skipped this hour, was '2026-03-29T02:30:00'",
        "2 errors in all",
    ]
    with pytest.raises(ConfigError, match=r"need times.zone .*; did you mean Europe/Berlin"):
        imported(tmp_path, text, "[times]\nzone = 'Europe/Berln'\n")


def test_marks_for_nothing_are_empty_and_those_of_the_mapping_in_every_column(tmp_path):
    text = "time,component,kind,resolved,code\n"
    marks = ["Unknown", "NaT", "None", "n/a", "-", "gone"]
    text += "".join(f"2026-01-0{n},n1,x,{mark},{mark}\n" for n, mark in enumerate(marks, 1))
    wide = "time,component,temp\n" + "".join(f"2026-01-02,n1,{mark}\n" for mark in marks)
    mapping = f"[csv]\nempty = ['gone']\n{TELEMETRY}"
    bundle = imported(tmp_path, text, f"[times]\nend = '2026-01-09'\n{mapping}", wide=wide)
    assert [event.t_resolved for event in bundle.events()] == [None] * 6
    assert [event.code for event in bundle.events()] == [*marks[:5], ""]
    assert np.isnan(values(bundle)).all()
    with pytest.raises(TraceError, match=r"need an ISO 8601 time .*, was 'gone'"):
        imported(tmp_path, text)


def test_decimal_commas_are_read_if_the_mapping_sets_them_and_thousands_refused(tmp_path):
    wide = "time;component;temp\n2026-01-01;n1;1,5\n2026-01-02;n1;-20\n"
    with pytest.raises(TraceError, match=r"wide.csv:2: need a number for temp \(or decimal"):
        imported(tmp_path, EVENTS, TELEMETRY, wide=wide)
    mapping = f"[csv]\ndecimal = ','\n{TELEMETRY}"
    assert values(imported(tmp_path, EVENTS, mapping, wide=wide)) == [1.5, -20]
    with pytest.raises(TraceError, match=r"wide.csv:4: need a number for temp, was '1.234'"):
        imported(tmp_path, EVENTS, mapping, wide=wide + "2026-01-03;n1;1.234\n")


def test_possibly_damaged_input_is_refused_or_warned_of(tmp_path, caplog):
    whole = imported(tmp_path, EVENTS).events()
    with pytest.raises(TraceError, match=r"events.csv: the last row is cut off: need 4 cells as "):
        imported(tmp_path, EVENTS + "2026-01-03T0")
    assert imported(tmp_path, EVENTS.removesuffix("\n")).events() == whole
    assert imported(tmp_path, EVENTS.replace("n1", " n1  ", 1)).events() == whole
    assert imported(tmp_path, EVENTS.replace(",component", ", component")).events() == whole
    assert caplog.messages == [
        "events.csv: the last row has no line end and may be incomplete: '2026-01-02,n1,x,'",
        "events.csv: blanks around cells removed: 1, the first ' n1  ' in row 2",
    ]
    with pytest.raises(TraceError, match=r"events.csv:1: need each column once, was 'kind' twice"):
        imported(tmp_path, EVENTS.replace("resolved", "kind "))
