"""``torchloom status`` on a terminal of 80 columns."""

import io

import msgspec
import pytest
from rich.console import Console

from torchloom_core.cli.status_command import render
from torchloom_core.wire.status import Status, WorkerStatus

WORKER = WorkerStatus(
    worker="g0-0",
    group="g0",
    node="node-0",
    rack="",
    state="training",
    step=12_345,
    incarnation=1,
    heartbeat_age_s=0.5,
    progress_age_s=0.013,
    knobs={"lr": 0.0009},
    metrics={"loss": 0.02737, "step_time_s": 0.01266},
)


def shown(
    *workers: WorkerStatus, width: int = 80, metrics: tuple[str, ...] = (), **fields: object
) -> list[str]:
    """Return the lines of the table, its heading first."""
    status = Status(
        run="run",
        epoch=1,
        ts_ns=0,
        stopped=False,
        dry_run=False,
        ticks=1,
        malformed=0,
        workers=workers,
        **fields,
    )
    out = io.StringIO()
    Console(file=out, width=width).print(render(status, metrics))
    return out.getvalue().splitlines()[1:]


def changed(**changes: object) -> WorkerStatus:
    return msgspec.structs.replace(WORKER, **changes)


def test_the_table_of_workers_fits_in_80_columns():
    heading, *rows = shown(WORKER, changed(worker="g1-0", node="node-1", ending="interrupted"))
    expected = "worker node state step step age seen knobs loss step_time_s"
    assert " ".join(heading.split()) == expected
    ages = ["12345", "0.0s", "0.5s", "lr=0.0009", "0.02737", "0.01266"]
    assert [row.split() for row in rows] == [
        ["g0-0", "node-0", "training", *ages],
        ["g1-0", "node-1", "interrupted", *ages],
    ]


def test_why_a_metric_has_no_value_is_said():
    lines = shown(WORKER, width=200, metrics=("loss", "mfu"))
    assert lines[-1] == (
        "no value of mfu: the status has the metrics that an active plugin reads, and those of "
        "`show` under [weaver]"
    )
    assert len(shown(WORKER, width=200, metrics=("loss",))) == len(lines) - 1


def test_of_several_roles_each_has_its_count_and_each_worker_its_role():
    rollout = changed(worker="rollout-0-0", group="rollout-0", role="rollout", ending="silent")
    status = Status(
        run="run",
        epoch=1,
        ts_ns=0,
        stopped=False,
        dry_run=False,
        ticks=1,
        malformed=0,
        workers=(WORKER, rollout),
    )
    out = io.StringIO()
    Console(file=out, width=100).print(render(status))
    first, heading, *rows = out.getvalue().splitlines()
    assert first.endswith("1 of 1 trainer and 0 of 1 rollout workers training")
    assert heading.split()[:3] == ["worker", "role", "node"]
    assert [row.split()[1] for row in rows] == ["trainer", "rollout"]


def test_a_summary_has_the_states_by_number_and_only_unusual_workers():
    counts = {"trainer": {"training": 9_998, "silent": 2}}
    silent = changed(worker="g4-1", ending="silent")
    states, groups, note, _, row = shown(
        summary=True, counts=counts, groups=1_249, unusual=(silent,), width=120
    )
    assert states == "trainer: 9,998 training, 2 silent"
    assert groups.startswith("1,249 replica groups train")
    assert note == "workers to look at"
    assert row.split()[:3] == ["g4-1", "node-0", "silent"]


def test_long_names_are_folded_and_nothing_is_cut():
    node = "gpu-node-0123456789.rack7.cluster.example"
    lines = shown(changed(node=node, hazards={"trend": 0.93}))
    text = "".join(lines)
    assert "\u2026" not in text
    for part in ("training", "12345", "0.01266", "step_time_s"):
        assert part in text
    heading = next(line for line in lines if "node" in line)
    column = slice(heading.index("node"), heading.index("state"))
    rows = lines[lines.index(heading) + 1 :]
    assert "".join(line[column].strip() for line in rows) == node


@pytest.mark.parametrize(("what", "given"), [("risk", {"hazards": {"trend": 0.2}}), ("knobs", {})])
def test_a_column_without_values_is_left_out(what, given):
    without = changed(hazards={}, knobs={})
    assert what not in shown(without)[0]
    assert what in shown(without, changed(**given))[0]


def test_a_line_feed_in_a_knob_starts_no_row():
    forged = msgspec.structs.replace(WORKER, knobs={"x": "a\ng1-0"})
    assert not any(line.strip().startswith("g1-0") for line in shown(forged, width=120))


def test_a_full_broker_is_named_above_the_table():
    lines = shown(WORKER, broker_full="store the state")
    assert any("the broker has no space: store the state waits" in line for line in lines)
