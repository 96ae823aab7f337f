"""The report of the knobs demo matches the groups' step logs."""

import json
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from torchloom_core.capabilities.checkpoint import SaveCheckpoint
from torchloom_core.cli.knob_commands import values_in
from torchloom_core.demos.knobs.changes import RecordedChange, changes_of, failures, land
from torchloom_core.demos.knobs.report import Report, draw, show, summary_of
from torchloom_core.demos.knobs.script import SCRIPT, ending
from torchloom_core.demos.steplog import StepLog, differences
from torchloom_core.wire.actions import ChangeKnob, ChangeKnobs
from torchloom_core.wire.decisions import Judged, Outcome, Verdict

BYTES = {"none": 1000, "bf16": 500, "int8": 260}
CHANGES = {
    10: {"compression": "bf16"},
    20: {"compression": "int8"},
    31: {"lr": 0.2},
    50: {"lr": 9.0},
    55: {"lr": 0.2},
}
"""Last step before each change; g1 is killed after step 30 and back at step 40."""
KILLED_AT = 30.5
STEPS = 60
GROUPS = ("g0", "g1", "g2")


def row(step, knobs, *, t=None, committed=True):
    return {
        "t": float(step) if t is None else t,
        "step": step,
        "committed": committed,
        "participants": 2 if 30 < step < 40 else 3,
        "loss": 0.1,
        "duration_s": 1.0,
        "sent_bytes": BYTES[knobs["compression"]],
        "knobs": knobs,
    }


def log(path, changes, *, away=()):
    """Return a group's log: one step per second, and each change after its step."""
    log = StepLog(path)
    knobs = {"lr": 0.1, "compression": "none"}
    for step in range(1, STEPS + 1):
        if step - 1 in changes:
            knobs = {**knobs, **changes[step - 1]}
        if step not in away:
            log.steps.append(row(step, knobs))
    log.end = {"step": STEPS, "weights": "w"}
    return log


@pytest.fixture
def logs(tmp_path):
    logs = {g: log(tmp_path / g, CHANGES, away=range(31, 40) if g == "g1" else ()) for g in GROUPS}
    for group in ("g0", "g2"):
        rows = logs[group].steps
        rows.insert(30, row(30, rows[29]["knobs"], t=30.7, committed=False))
    return logs


@pytest.fixture
def changes():
    first, second, third, fourth, fifth = (
        RecordedChange(by="operator", values=values, at=step - 0.4, result="done")
        for step, values in CHANGES.items()
    )
    return [
        first,
        second,
        replace(third, at=30.2),
        replace(fourth, hurt=True, why="it rose"),
        replace(fifth, by="guard"),
    ]


@pytest.fixture
def report(changes, logs):
    return Report(changes, logs, KILLED_AT)


def failed(report):
    return [promise for promise, passed in report.promises().items() if not passed]


def test_a_good_run_passes_all_checks(report):
    assert failed(report) == []


def test_a_landing_has_the_last_step_before_the_change_or_the_first_after_a_restart(report):
    landing = report.landings[2]
    assert landing.last_without == {"g0": 31, "g2": 31}
    assert landing.inherited == {"g1": 40}
    assert landing.seconds == pytest.approx(0.8)
    assert landing.failed_steps == 2
    assert report.landings[0].last_without == dict.fromkeys(GROUPS, 10)
    assert report.landings[0].failed_steps == 0


def test_a_group_that_changes_one_step_later_is_found(changes, logs, tmp_path):
    late = {(11 if step == 10 else step): values for step, values in CHANGES.items()}
    logs["g2"] = log(tmp_path / "late", late)
    assert not land(changes[0], logs).is_at_one_step(logs)
    assert differences(logs) == [11]
    assert {promise.split(":")[0] for promise in failed(Report(changes, logs, KILLED_AT))} >= {
        "all groups applied each of the 5 changes at the same step",
        "steps with different knobs in two groups",
    }


def test_a_step_that_fails_without_a_kill_is_shown_with_its_error(report):
    assert failures(report.logs, report.zero, KILLED_AT) == (2, [])
    rows = report.logs["g1"].steps
    late = row(STEPS, rows[-1]["knobs"], t=99.0, committed=False)
    rows.append({**late, "error": "Timed out waiting 5000ms\n"})
    other = f"g1 after step {STEPS}: Timed out waiting 5000ms"
    assert failures(report.logs, report.zero, KILLED_AT) == (2, [other])
    assert failed(report) == ["failed steps: 2 by the kill, 1 by other causes"]
    console = Console(file=StringIO(), width=200)
    show(console, report)
    assert other in console.file.getvalue()


def test_a_failed_step_after_one_in_progress_at_the_kill_counts_for_the_kill(report):
    rows = report.logs["g0"].steps
    first = next(at for at, one in enumerate(rows) if not one["committed"])
    rows.insert(first, {**rows[first - 1], "t": KILLED_AT + 0.1})
    assert failures(report.logs, report.zero, KILLED_AT) == (2, [])


def test_changes_are_read_with_their_source_and_outcome():
    def verdict(number, action, policy="person", *, granted=True):
        return float(number), Verdict(
            proposal=f"p{number}",
            policy=policy,
            action=action,
            granted=granted,
            rule=policy,
            reason="",
            net_gpu_s=0.0,
        )

    both = ChangeKnobs(values={"lr": 0.2, "clip_norm": 1.0})
    back = ChangeKnobs(values={"lr": 0.1})
    hurt = Judged(verdict="p1", hurt=True, text="it rose", before={"lr": 0.1})
    done = {"action": both, "result": "done", "detail": "", "took_s": 0.1}
    record = [
        verdict(1, both),
        (1.5, Outcome(verdict="p1", policy="person", **done)),
        (2.0, hurt),
        verdict(3, back, "guard"),
        verdict(4, ChangeKnob(knob="compression", value="int8")),
        verdict(5, ChangeKnob(knob="lr", value=1.0), granted=False),
        verdict(6, SaveCheckpoint()),
    ]
    first, second, third = changes_of(record)
    assert (first.by, first.at, first.outcome) == ("operator", 1.0, "rolled back")
    assert first.text == "lr 0.2, clip_norm 1.0"
    assert (second.by, second.outcome) == ("guard", "")
    assert third.values == {"compression": "int8"}


def test_the_shown_command_sends_the_same_request():
    first = "torchloom knob set lr 0.1 clip_norm 1.0 --watch loss --window 3"
    assert SCRIPT[0].command == first
    for change in (*SCRIPT, ending(300)):
        own = change.command.split(" --")[0].split()[3:]
        typed = values_in("knob set", own)
        request = change.request
        assert typed == {request.knob: request.value, **request.also}
        assert (request.guard is not None) == ("--watch" in change.command)
        assert request.sure == change.command.endswith("--yes")


def test_the_tables_the_summary_and_the_plot_are_written(report, tmp_path):
    shown = StringIO()
    show(Console(file=shown, width=80), report)
    assert "g0 g2: 31" in shown.getvalue()
    assert "g1: back at 40" in shown.getvalue()
    assert "…" not in shown.getvalue()
    summary = json.loads(json.dumps(summary_of(report, seed=3)))
    assert summary["seed"] == 3
    assert all(summary["promises"].values())
    draw(tmp_path / "demo.png", report)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
