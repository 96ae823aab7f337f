import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deadlines import DEADLINE_S
from tests.waiting import until
from torchloom_core.lab.trace.importers.csv_trace import import_csv

pytestmark = pytest.mark.integration

EVENTS = """\
time,component,kind,resolved
2026-01-01,n1,[red]gpu,2026-01-01T10:00:00
2026-01-03,n2,nic,
"""


@pytest.fixture
def with_bundle(folder):
    """A folder with an imported CSV file."""
    (folder.path / "mine.csv").write_text(EVENTS)
    import_csv(folder.path / "mine.csv", folder.path / "mine.tltrace")
    return folder


def test_a_bundle_is_validated(with_bundle):
    result = with_bundle.torchloom("trace", "validate", "mine.tltrace")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "mine.tltrace: no errors\n"


@pytest.mark.long
def test_each_error_is_a_line_and_the_exit_status_is_6(with_bundle):
    path = with_bundle.path / "mine.tltrace" / "events.jsonl"
    path.write_text(path.read_text().replace("mine-3", "mine-2"))
    result = with_bundle.torchloom("trace", "validate", "mine.tltrace")
    assert result.returncode == 6
    checksum, twice = result.stdout.splitlines()
    assert checksum.startswith("mine.tltrace/events.jsonl: need sha256 ")
    assert twice == "mine.tltrace/events.jsonl:2: need a unique id, was 'mine-2' again"
    found = json.loads(with_bundle.torchloom("trace", "validate", "mine.tltrace", "--json").stdout)
    assert found == {"faults": [checksum, twice], "remarks": []}


@pytest.mark.long
def test_a_bundle_is_summarized_as_text(with_bundle):
    result = with_bundle.torchloom("trace", "describe", "mine.tltrace", "--plot", "plot.svg")
    assert (result.returncode, result.stderr) == (0, "")
    for part in (
        "2026-01-01 00:00 to 2026-01-03 00:00, 2 days",
        "2 of 2",
        "0.5 [0.0606, 1.81], exact Poisson 95 %, 2 in 4 node-days",
        "[red]gpu",
        "wrote plot.svg",
    ):
        assert part in result.stdout
    assert (with_bundle.path / "plot.svg").read_text().startswith("<?xml")


@pytest.mark.long
@pytest.mark.parametrize(
    ("plot", "rule"),
    [
        ("plot.pdf", "need a file .png or .svg, was .pdf"),
        ("file/plot.svg", "cannot be written: need a folder, was a file: {}/file"),
    ],
)
def test_an_invalid_plot_is_refused_before_the_bundle_is_read(folder, plot, rule):
    (folder.path / "file").touch()
    result = folder.torchloom("trace", "describe", "none.tltrace", "--plot", plot)
    assert result.stderr == f"torchloom: {plot}: {rule.format(folder.path)}\n"


@pytest.mark.long
def test_a_changed_bundle_is_summarized_with_a_warning(with_bundle):
    path = with_bundle.path / "mine.tltrace" / "events.jsonl"
    path.write_text(path.read_text() + "\n")
    for words in ((), ("--json",)):
        result = with_bundle.torchloom("trace", "describe", "mine.tltrace", *words)
        assert result.returncode == 0
        (line,) = result.stderr.splitlines()
        assert line.startswith("warning: mine.tltrace/events.jsonl: need sha256 ")
        assert line.endswith("; the file changed after the bundle was written")
        assert "warning" not in result.stdout


@pytest.mark.long
def test_each_wrong_row_is_one_line_and_no_file_is_left(with_bundle):
    before = sorted(with_bundle.path.iterdir())
    wrong = EVENTS.replace("2026-01-01,", "01/01/26,").replace("2026-01-03", "03/01/26")
    (with_bundle.path / "mine.csv").write_text(wrong)
    result = with_bundle.torchloom("trace", "import", "csv", "mine.csv", "new.tltrace")
    assert result.returncode == 6
    rule = "need an ISO 8601 time (or times.unit in a mapping)"
    assert result.stderr.splitlines() == [
        f"torchloom: mine.csv:2: {rule}, was '01/01/26'",
        f"mine.csv:3: {rule}, was '03/01/26'",
        "2 errors in all",
    ]
    assert sorted(with_bundle.path.iterdir()) == before


@pytest.fixture
def half_written(folder):
    """Start to write a large trace; yield the process once it has written a part."""
    torchloom = Path(sys.executable).with_name("torchloom")
    command = [torchloom, "trace", "synthesize", "large.tltrace", "--nodes", "400"]
    with subprocess.Popen(command, cwd=folder.path, stderr=subprocess.PIPE, text=True) as writing:
        try:
            until(lambda: [*folder.path.glob(".large.tltrace.*/*/telemetry/*")])
            yield writing
        finally:
            writing.kill()


@pytest.mark.long
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interrupt_is_reported_and_leaves_no_file(folder, half_written, number, status):
    half_written.send_signal(number)
    _, errors = half_written.communicate(timeout=DEADLINE_S)
    assert half_written.returncode == status
    assert errors == "torchloom: interrupted; large.tltrace was not written\n"
    assert [*folder.path.iterdir()] == []


@pytest.mark.long
def test_the_next_command_removes_files_of_a_killed_one(folder, half_written):
    half_written.kill()
    half_written.wait(DEADLINE_S)
    assert [*folder.path.iterdir()] != []
    small = ("large.tltrace", "--nodes", "2", "--days", "1")
    result = folder.torchloom("trace", "synthesize", *small)
    assert result.returncode == 0
    assert result.stderr.endswith("removed the draft of a killed process\n")
    assert [path.name for path in folder.path.iterdir()] == ["large.tltrace"]
