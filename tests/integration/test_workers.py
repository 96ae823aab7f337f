"""Events of workers reach the Weaver, and requests of a person reach the workers."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.deadlines import DEADLINE_S
from tests.installing import install

pytestmark = pytest.mark.integration

CONFIG = """
[weaver]
state_dir = "state"
tick_s = 0.1
policy_budget_s = 0.2

[arbiter]
cooldown_s = 0

[policies.raises]

[policies.hangs]

[policies.silence]
progress_limit_s = 2
"""

BAD_POLICIES = Path(__file__).with_name("bad_policies.py")


@pytest.fixture(scope="module")
def run(start_run, tmp_path_factory):
    """A Weaver with good and bad policies, and two workers that train."""
    site = tmp_path_factory.mktemp("site")
    install(site, "bad_policies", BAD_POLICIES.read_text(), {"torchloom": {"bad": "bad_policies"}})
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    run = start_run(CONFIG, {"PYTHONPATH": path})
    run.start_weaver()
    for group in ("g0", "g1"):
        run.start_light(group, "--step-s", "0.02")
    run.training("g0", "g1")
    return run


@pytest.fixture
def g0(run):
    return run.trainers["g0"][-1]


@pytest.mark.long
def test_policies_that_raise_or_hang_are_quarantined_and_the_others_go_on(run, until):
    def states():
        rows = {row["name"]: row for row in run.ask("status")["plugins"]}
        return rows if rows["hangs"]["state"] == "quarantined" else None

    rows = until(states)
    assert rows["raises"]["state"] == "quarantined"
    assert rows["raises"]["detail"] == "raised: ValueError: three is enough (bad_policies.py:23)"
    assert rows["hangs"]["detail"].startswith("overran: took more than 0.2 s (bad_policies.py:")
    assert rows["silence"]["state"] == "act"
    run.ticks(3)
    log = run.weaver.errors.read_text()
    assert log.count("three is enough") == 1
    assert log.count("took more than 0.2 s") == 1
    assert "Traceback" not in log


@pytest.mark.long
def test_a_hung_trainer_is_reported_with_its_stacks_and_silence_proposes(run, until):
    hung = run.start_light("g7", "--hang-at", "5", TORCHLOOM_HANG_AFTER_S="1")
    note = until(
        lambda: next((n for _, n in run.records("note") if (n["worker"], n["kind"]) == HUNG), None)
    )
    assert "wait_for_ever" in note["fields"]["stacks"]

    def proposed():
        proposals = [p for _, p in run.records("proposed") if p["policy"] == "silence"]
        kinds = {p["proposal"]["action"]["kind"] for p in proposals}
        return kinds if len(kinds) == 2 else None

    assert until(proposed) == {"alert", "dump"}
    # A dump is collected off the training thread, so even a trainer that hangs gives one.
    until(lambda: any(n["kind"] == "dump" for _, n in run.records("note")))
    assert run.worker("g7-0")["step"] == 4
    hung.process.kill()
    until(lambda: run.worker("g7-0")["state"] == "gone")


HUNG = ("g7-0", "hang")


def test_the_kill_of_a_trainer_is_recorded_and_its_next_incarnation_gets_the_desired_knobs(
    run, until, g0
):
    assert run.ask("knob.set", {"knob": "x", "value": 7.5})["ok"]
    until(lambda: [row["value"] for row in g0.journal("set")] == [7.5])
    before = run.worker("g0-0")["incarnation"]
    g0.process.send_signal(signal.SIGKILL)
    g0.process.wait()
    (end,) = until(lambda: [b for _, b in run.records("exit") if b["worker"] == "g0-0"])
    assert (end["status"], end["expected"]) == (-9, False)
    until(lambda: run.worker("g0-0")["state"] == "gone")
    notices = [b["text"] for _, b in run.records("notice") if b["kind"] == "fault"]
    assert any(text.startswith("g0-0 was killed by SIGKILL after step") for text in notices)

    g0.journal_path.unlink()
    again = run.start_light("g0", "--step-s", "0.02")
    until(lambda: [row["value"] for row in again.journal("set")] == [7.5])
    until(
        lambda: {"x": 7.5, "fenced_change": 1}.items() <= run.ask("knobs")["values"]["g0-0"].items()
    )
    assert run.worker("g0-0")["incarnation"] > before


def test_a_person_needs_nothing_but_nats_requests(run, until, g0):
    status = run.ask("status")
    assert {"g0-0", "g1-0"} <= {row["worker"] for row in status["workers"]}
    printed = json.loads(run.torchloom("status", "--json").stdout)
    assert printed.keys() == status.keys()
    knobs = run.ask("knobs")
    assert {spec["name"] for spec in knobs["specs"]} == {"x", "fenced_change", "log_level"}

    answer = run.ask("knob.set", {"knob": "x", "value": 3.0, "worker": "g0-0"})
    assert answer["ok"], answer
    until(lambda: [row["value"] for row in g0.journal("set")][-1:] == [3.0])
    values = json.loads(run.torchloom("knob", "get", "x", "--json").stdout)["values"]
    assert values == {"g0-0": 3.0, "g1-0": 7.5}

    assert run.ask("propose", {"action": {"kind": "checkpoint", "group": "g0"}})["ok"]
    until(lambda: g0.journal("checkpoint"))
    for kind, state in (("pause", "paused"), ("resume", "training")):
        until(lambda kind=kind: run.ask("propose", {"action": {"kind": kind}})["ok"])
        until(lambda state=state: run.worker("g0-0")["state"] == state)
    assert run.ask("approve", {"proposal": "p9.9"}) == {
        "ok": False,
        "text": "no proposal 'p9.9' waits for approval",
        "ids": [],
    }


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("knob set x 1000", "denied by impossible: knob x: need at most 100, was 1000"),
        (
            "knob set y 1",
            "denied by impossible: no knob is called 'y'; there are fenced_change, log_level, x",
        ),
        (
            "knob set x 1 --worker g0-00",
            "denied by impossible: no worker is called 'g0-00'; did you mean g0-0",
        ),
        ("drain g9", "denied by impossible: no group is called 'g9'; there are g0, g1"),
        ("migrate g0", "denied by impossible: this run cannot migrate: need a standby"),
    ],
)
def test_an_impossible_request_is_one_line(run, words, line):
    result = run.torchloom(*words.split())
    assert result.returncode == 5
    assert result.stderr.startswith(f"torchloom: {line}"), result.stderr
    assert result.stderr.count("\n") == 1
    assert not result.stdout


@pytest.mark.long
def test_the_kill_switch_halts_a_migration_and_outlasts_the_weavers_kill(run, until, g0):
    joiner = run.start_light("g5", "--step-s", "6", TORCHLOOM_ROLE="standby")
    until(lambda: (run.worker("g5-0") or {}).get("state") == "standby")
    answer = run.ask("propose", {"action": {"kind": "migrate", "group": "g0"}})
    assert answer["ok"], answer
    until(lambda: run.worker("g5-0")["state"] == "joining")  # its first step takes a while
    stopped = run.torchloom("actions", "stop")
    assert stopped.stdout == "actions are stopped; 1 under way called off\n"
    run.training("g5")
    run.ticks(10)
    assert verbs_issued(run).count("join") == 1
    assert "drain" not in verbs_issued(run)
    done = len(g0.journal("step"))
    until(lambda: len(g0.journal("step")) > done)
    (outcome,) = [b for _, b in run.records("outcome") if b["action"]["kind"] == "migrate"]
    assert (outcome["result"], outcome["detail"]) == ("partial", "actions were stopped")

    issued = verbs_issued(run)
    for words in (["knob", "set", "x", "9"], ["drain", "g0"], ["checkpoint"], ["pause"]):
        refused = run.torchloom(*words)
        assert refused.returncode == 5
        assert refused.stderr.startswith("torchloom: denied by kill_switch: actions are stopped")
    assert verbs_issued(run) == issued

    run.kill_weaver()
    run.start_weaver()
    run.training("g0", "g1", "g5")
    run.ticks(5)
    assert run.ask("status")["stopped"]
    assert verbs_issued(run) == issued

    assert run.torchloom("actions", "resume").returncode == 0
    assert run.torchloom("drain", "g5", "--wait", "0").returncode == 0
    assert joiner.process.wait(DEADLINE_S) == 0
    after = verbs_issued(run)[len(issued) :]
    assert set(after) - {"dump"} == {"drain"}  # its long steps may look like a hang again


def verbs_issued(run):
    return [body["command"]["do"]["verb"] for _, body in run.records("issue")]


@pytest.mark.long
def test_every_epoch_replays_to_the_same_decisions_including_overruns(run):
    run.weaver.send_signal(signal.SIGTERM)
    assert run.weaver.wait(DEADLINE_S) == 0
    result = run.torchloom("trajectory", "replay", run.trajectory)
    assert result.returncode == 0, result.stdout + result.stderr
    epochs = result.stdout.splitlines()
    assert epochs
    assert all(line.endswith("all the same") for line in epochs), result.stdout
