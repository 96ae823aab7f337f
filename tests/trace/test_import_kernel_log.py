"""Xid lines of kernel logs become faults of the GPU's node."""

import subprocess
import sys

import pytest

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import TraceError
from torchloom_core.floor.xids import meaning
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.importers.hostlist import expand
from torchloom_core.lab.trace.importers.kernel_log import import_kernel_log
from torchloom_core.lab.trace.validation.validate import validate
from torchloom_core.testing import ImporterContract

BUS = "NVRM: Xid (PCI:0000:3b:00): 79, pid=17, GPU has fallen off the bus."
T0_NS = 1_767_520_800 * SECOND_NS  # 2026-01-04T10:00:00Z


def imported(folder, *lines, **options):
    (folder / "kern.log").write_text("".join(f"{line}\n" for line in lines))
    import_kernel_log(folder / "kern.log", folder / "out.tltrace", **options)
    assert not validate(folder / "out.tltrace").faults
    return Bundle.open(folder / "out.tltrace")


@pytest.mark.parametrize(
    ("line", "options", "node"),
    [
        (f"2026-01-04T11:00:00+0100 n7 kernel: {BUS}", {}, "n7"),
        (f"2026-01-04T10:00:00,000000+00:00 {BUS}", {"node": "n1"}, "n1"),
        (f"[Sun Jan  4 10:00:00 2026] {BUS}", {"node": "n1"}, "n1"),
        (f"Jan  4 11:00:00 n7 kernel: [1.5] {BUS}", {"year": 2026, "zone": "Europe/Berlin"}, "n7"),
    ],
)
def test_a_time_is_read_in_each_form_that_the_tools_write(tmp_path, line, options, node):
    (event,) = imported(tmp_path, line, **options).events()
    assert (event.t_event, event.component) == (T0_NS, node)
    assert (event.kind, event.code, event.fatal) == ("fallen_off_the_bus", "xid-79", True)
    assert (event.follows, event.extra["gpu"]) == ("component", "0000:3b:00")


def test_a_log_without_years_goes_on_in_the_next_one(tmp_path):
    lines = [f"Dec 31 23:59:59 n1 kernel: {BUS}", f"Jan  1 00:10:00 n1 kernel: {BUS}"]
    before, after = imported(tmp_path, *lines, year=2025).events()
    assert after.t_event - before.t_event == 601 * SECOND_NS


def test_repeated_lines_are_one_event_and_other_lines_extend_the_span(tmp_path):
    opened = imported(
        tmp_path,
        "2026-01-04T09:00:00+0000 n2 kernel: eth0: link up",
        *(f"2026-01-04T10:0{minute}:00+0000 n7 kernel: {BUS}" for minute in range(4)),
        "2026-01-04T10:04:00+0000 n7 kernel: NVRM: Xid (PCI:0000:3b:00): 63, pid=1, Row Remapper",
        "2026-01-04T10:05:00+0000 n7 kernel: nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, "
        "Fatal, Link 30 LTSSM Fault Up",
        "no time at all",
    )
    fallen, remapped, switch = opened.events()
    assert (fallen.extra["lines"], fallen.fatal, remapped.fatal) == (4, True, False)
    assert (switch.code, switch.fatal, switch.follows) == ("sxid-20034", True, "fabric")
    assert opened.manifest.start_ns == T0_NS - 3600 * SECOND_NS
    assert [part.id for part in opened.topology()] == ["n2", "n7"]


def test_a_folder_has_a_log_per_node(tmp_path):
    (tmp_path / "logs").mkdir()
    for node in ("n1", "n2"):
        line = f"[Sun Jan  4 10:00:00 2026] {BUS if node == 'n2' else 'fine'}\n"
        (tmp_path / "logs" / f"{node}.log").write_text(line)
    import_kernel_log(tmp_path / "logs", tmp_path / "out.tltrace")
    opened = Bundle.open(tmp_path / "out.tltrace")
    assert [event.component for event in opened.events()] == ["n2"]
    assert [part.id for part in opened.topology()] == ["n1", "n2"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"Jan  4 10:00:00 n7 kernel: {BUS}", r"kern\.log:1: need --year for a time without a"),
        (f"[ 12.5] {BUS}", r"kern\.log:1: need a time of day before an Xid: use dmesg --time-f"),
        (f"[Sun Jan  4 10:00:00 2026] {BUS}", r"kern\.log:1: need --node for a line without"),
        (f"2026-13-04T10:00:00Z n7 kernel: {BUS}", r"kern\.log:1: need an ISO 8601 time, was"),
        ("nothing here", r"kern\.log: need a line with a time, was none"),
    ],
)
def test_a_line_that_cannot_be_read_is_named_and_nothing_is_written(tmp_path, line, message):
    with pytest.raises(TraceError, match=message):
        imported(tmp_path, line)
    assert [path.name for path in tmp_path.iterdir()] == ["kern.log"]


def test_an_xid_is_fatal_as_in_the_catalogue():
    fatal = {xid for xid in range(1, 180) if meaning(xid, "").fatal}
    assert {13, 31, 48, 74, 79, 94, 95, 119, 120} <= fatal
    assert not {45, 63, 92, 121, 149, 154, 157} & fatal
    assert meaning(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 09").fatal
    assert (meaning(31, "").follows, meaning(9, "").kind) == ("job", "other_xid")


def test_a_host_list_is_expanded_within_its_bound():
    hosts = expand("a[01-02,7]-ib[0-1],login")
    assert hosts == ["a01-ib0", "a01-ib1", "a02-ib0", "a02-ib1", "a7-ib0", "a7-ib1", "login"]
    assert list(expand("None assigned")) == []
    for wrong in ("n[1-", "n[3-1]", "n[x]", "a,,b"):
        with pytest.raises(TraceError, match="need a"):
            expand(wrong)
    with pytest.raises(TraceError, match="need at most 100000 hosts"):
        expand("n[0-99999999999]")


MEASURE = """
import resource, sys
from pathlib import Path
from torchloom_core.lab.trace.importers.kernel_log import import_kernel_log
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
import_kernel_log(Path(sys.argv[1]), Path(sys.argv[2]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.integration
@pytest.mark.long
def test_a_million_lines_take_little_memory(tmp_path):
    line = "2026-01-04T10:00:00+0000 n2 kernel: eth0: link up\n"
    with (tmp_path / "n1.log").open("w") as file:
        for _ in range(1000):
            file.write(line * 1000)
        file.write(f"2026-01-04T10:00:00+0000 n2 kernel: {BUS}\n")
    command = [sys.executable, "-c", MEASURE, tmp_path / "n1.log", tmp_path / "out.tltrace"]
    grown_kib = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert int(grown_kib.stdout) < 20_000


class TestKernelLog(ImporterContract):
    importer = import_kernel_log

    def write_source(self, folder):
        (folder / "n1.log").write_text(f"2026-01-04T10:00:00+0000 n1 kernel: {BUS}\n")
        return folder / "n1.log"
