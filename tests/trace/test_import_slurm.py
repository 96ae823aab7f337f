"""Exports of sacct, sacctmgr and sinfo become faults of nodes and of jobs."""

import pytest

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import ConfigError, TraceError
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.importers.slurm import import_slurm
from torchloom_core.lab.trace.validation.validate import validate
from torchloom_core.testing import ImporterContract

JOBS = "JobID|NodeList|State|ExitCode|Start|End"
NODES = "Cluster|NodeName|TimeStart|TimeEnd|State|Reason|User"
T0_NS = 1_767_520_800 * SECOND_NS  # 2026-01-04T10:00:00Z
HOUR_NS = 3600 * SECOND_NS


def job(number, nodes, state, end="2026-01-04T10:00:00"):
    return f"{number}|{nodes}|{state}|1:0|2026-01-04T08:00:00|{end}"


def down(node, state, start, end, reason="no ping"):
    return f"c|{node}|2026-01-04T{start}|{end and f'2026-01-04T{end}'}|{state}|{reason}|root(0)"


def imported(folder, *rows, nodes=(), **options):
    (folder / "jobs.txt").write_text("\n".join([JOBS, *rows]) + "\n")
    if nodes:
        (folder / "nodes.txt").write_text("\n".join([NODES, *nodes]) + "\n")
        options["also"] = (folder / "nodes.txt",)
    import_slurm(folder / "jobs.txt", folder / "out.tltrace", **options)
    assert not validate(folder / "out.tltrace").faults
    return Bundle.open(folder / "out.tltrace")


def test_a_job_that_failed_follows_the_job_and_every_named_node_is_there(tmp_path):
    opened = imported(
        tmp_path,
        job(1, "n[01-02]", "COMPLETED"),
        job(2, "n[03-04]", "FAILED"),
        job("2.batch", "n03", "FAILED"),
        job(3, "n05", "CANCELLED by 1000"),
        job(4, "None assigned", "PENDING", "Unknown"),
    )
    (event,) = opened.events()
    assert (event.component, event.kind, event.follows) == ("n03", "failed", "job")
    assert (event.t_event, event.code, event.extra) == (T0_NS, "1:0", {"job": "2"})
    assert [part.id for part in opened.topology()] == ["n01", "n02", "n03", "n04", "n05"]


def test_a_lost_node_is_the_failed_one_or_else_uncertain(tmp_path):
    opened = imported(tmp_path, job(1, "n[1-3]", "NODE_FAIL"), job(2, "n7", "NODE_FAIL"))
    events = {event.component: event for event in opened.events()}
    assert [events[name].label for name in ("n1", "n2", "n3", "n7")] == [
        *["uncertain"] * 3,
        "certain",
    ]
    assert {events["n2"].cause, events["n3"].cause} == {events["n1"].id}
    table = f"{JOBS}|FailedNode\n{job(1, 'n[1-3]', 'NODE_FAIL')}|n9\n"
    (tmp_path / "jobs.txt").write_text(table)
    import_slurm(tmp_path / "jobs.txt", tmp_path / "named.tltrace")
    (event,) = Bundle.open(tmp_path / "named.tltrace").events()
    assert (event.component, event.label) == ("n9", "certain")
    assert not validate(tmp_path / "named.tltrace").faults


def test_a_node_that_was_down_explains_the_job_that_lost_it(tmp_path):
    opened = imported(
        tmp_path,
        job(1, "n[1-3]", "NODE_FAIL"),
        nodes=[
            down("", "", "07:00:00", "08:00:00"),
            down("n2", "DOWN*", "09:58:00", "11:00:00"),
            down("n2", "DOWN", "11:00:00", "12:00:00", "reboot"),
            down("n9", "IDLE+DRAIN", "09:00:00", "10:00:00", "gres/gpu count"),
            down("n8", "MAINT", "09:00:00", "10:00:00"),
        ],
    )
    (event,) = opened.events()
    assert (event.component, event.kind, event.code) == ("n2", "down", "no ping")
    assert (event.t_event, event.t_resolved) == (T0_NS - 120 * SECOND_NS, T0_NS + 2 * HOUR_NS)
    (action,) = opened.actions()
    assert (action.component, action.kind, action.reason) == ("n9", "drain", "gres/gpu count")


def test_a_snapshot_of_sinfo_and_a_time_zone_are_read(tmp_path):
    text = "NODELIST|STATE|REASON|TIMESTAMP\nn[1-2]|down*|Not responding|2026-01-04T11:00:00\n"
    (tmp_path / "sinfo.txt").write_text(text + "n3|idle|none|Unknown\n")
    import_slurm(tmp_path / "sinfo.txt", tmp_path / "out.tltrace", zone="Europe/Berlin")
    opened = Bundle.open(tmp_path / "out.tltrace")
    assert [(e.component, e.t_event, e.t_resolved) for e in opened.events()] == [
        ("n1", T0_NS, None),
        ("n2", T0_NS, None),
    ]
    assert len(opened.topology()) == 3
    with pytest.raises(ConfigError, match="--zone: need a time zone"):
        import_slurm(tmp_path / "sinfo.txt", tmp_path / "two.tltrace", zone="Berlin/Europe")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1|n1|FAILED|1:0", r"jobs\.txt:2: need 6 cells as in the header, was 4"),
        (job(1, "n[1-", "FAILED"), r"jobs\.txt:2: need a host list such as .*was 'n\[1-'"),
        (job(1, "n1", "BROKEN"), r"jobs\.txt:2: need a state of a job such as NODE_FAIL, was 'B"),
        (job(1, "n1", "FAILED", "soon"), r"jobs\.txt:2: need an ISO 8601 time, was 'soon'"),
        (job(1, "n1", "FAILED", "2026-01-03T00:00:00"), r":2: need an end after the start"),
        (job(1, "", "PENDING", "Unknown"), r"jobs\.txt: need a row with a time, was none"),
    ],
)
def test_a_row_that_cannot_be_is_named_and_nothing_is_written(tmp_path, row, message):
    with pytest.raises(TraceError, match=message):
        imported(tmp_path, row)
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.txt"]


def test_the_first_ten_errors_are_listed_and_the_others_counted(tmp_path):
    with pytest.raises(TraceError, match=r"jobs\.txt:11: (?s:.*)\n5000 errors in all$") as error:
        imported(tmp_path, *["|||||"] * 5000)
    assert len(str(error.value).splitlines()) == 11
    (tmp_path / "jobs.txt").write_text("day|node\n")
    with pytest.raises(TraceError, match=r"jobs\.txt:1: need the columns of sacct"):
        import_slurm(tmp_path / "jobs.txt", tmp_path / "out.tltrace")


class TestSlurm(ImporterContract):
    importer = import_slurm

    def write_source(self, folder):
        (folder / "jobs.txt").write_text(f"{JOBS}\n{job(1, 'n1', 'NODE_FAIL')}\n")
        return folder / "jobs.txt"
