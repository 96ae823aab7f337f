"""Each process of torchLoom is killed with SIGKILL in turn during one live torchft run."""

import os
import signal

import pytest

from tests.deadlines import DEADLINE_S
from torchloom_core.wire.commands import FINAL_STATUSES

pytestmark = pytest.mark.integration

CONFIG = """
[weaver]
state_dir = "state"
tick_s = 0.25
command_deadline_s = 100

[arbiter]
cooldown_s = 0

[policies.silence]

[policies.straggler]
mode = "shadow"
"""
TRAINING = ("g0", "g1", "g2")


@pytest.fixture(scope="module")
def run(start_run, lighthouse, until):
    """Three training groups and one standby."""
    run = start_run(CONFIG)
    run.start_weaver()
    for group in TRAINING:
        run.start_torchft(group, lighthouse)
    standby = run.start_torchft("g3", lighthouse, TORCHLOOM_ROLE="standby")
    standby.hold.touch()
    run.training(*TRAINING)
    until(lambda: (run.worker("g3-0") or {}).get("state") == "standby")
    for group in TRAINING:
        until(lambda group=group: run.trainers[group][0].rows)
    return run


@pytest.fixture
def trainers(run):
    return [run.trainers[group][0] for group in TRAINING]


def all_applied(run, until, ids):
    """Wait until the record has the end of each command, and return how each ended."""

    def ends():
        statuses = run.records("command_status")
        found = {i: [b["status"] for _, b in statuses if b["command"] == i] for i in ids}
        final = {i: [s for s in seen if s in FINAL_STATUSES] for i, seen in found.items()}
        return final if all(final.values()) else None

    return until(ends)


def saves(trainers):
    """Return how often each trainer has saved a checkpoint."""
    return [len(trainer.journal("checkpoint")) for trainer in trainers]


def set_in_flight(run, value, stopped):
    """Set a knob everywhere and save a checkpoint, while some sidecars are stopped."""
    for trainer in stopped:
        trainer.sidecar.suspend()
    knob = run.ask("knob.set", {"knob": "counter", "value": value})
    save = run.ask("propose", {"action": {"kind": "checkpoint"}})
    assert knob["ok"], knob
    assert save["ok"], save
    return [*knob["ids"], *save["ids"]]


def assert_once(trainers, value, saves_before):
    values_set = [[row["value"] for row in trainer.journal("counter")] for trainer in trainers]
    assert [values.count(value) for values in values_set] == [1] * len(trainers)
    assert saves(trainers) == [count + 1 for count in saves_before]


def test_a_killed_weaver_loses_no_command_and_its_successor_repeats_none(run, trainers, until):
    early, late = trainers[1], trainers[2]
    before = saves(trainers)
    ids = set_in_flight(run, 11, [early, late])
    until(lambda: saves(trainers)[0] > before[0])
    run.kill_weaver()
    for trainer in trainers:
        trainer.goes_on()
    early.sidecar.resume()  # its commands are on file, and are done while there is no Weaver
    until(lambda: saves(trainers)[1] > before[1])
    run.start_weaver()
    late.sidecar.resume()  # it finds both copies: the first Weaver's and the second's
    assert all_applied(run, until, ids) == {command: ["applied"] for command in ids}
    assert_once(trainers, 11, before)
    first, second = [body["epoch"] for _, body in run.records("recovered")]
    assert second == first + 1
    outcomes = [body for epoch, body in run.records("outcome") if epoch == second]
    assert sorted(o["action"]["kind"] for o in outcomes) == ["checkpoint", "knob"]
    assert {o["result"] for o in outcomes} == {"done"}
    assert [(k["knob"], k["value"]) for k in run.ask("knobs")["desired"]] == [("counter", 11)]


def test_a_killed_broker_comes_back_and_no_command_is_lost_or_repeated(run, trainers, until):
    before = saves(trainers)
    ids = set_in_flight(run, 22, trainers[1:2])
    first = run.broker["pid"]
    os.kill(first, signal.SIGKILL)  # the commands may not even have reached it
    for trainer in trainers:
        trainer.goes_on()
    trainers[1].sidecar.resume()
    until(lambda: run.broker["pid"] != first)
    assert all_applied(run, until, ids) == {command: ["applied"] for command in ids}
    assert_once(trainers, 22, before)
    run.training(*TRAINING)
    assert run.weaver.poll() is None


def test_a_killed_sidecar_is_replaced_and_no_command_is_lost_or_repeated(run, trainers, until):
    victim = trainers[1]
    before = saves(trainers)
    ids = set_in_flight(run, 33, [victim])
    first = victim.sidecar
    first.send_signal(signal.SIGKILL)
    victim.goes_on()
    until(lambda: victim.sidecar not in (None, first))
    assert all_applied(run, until, ids) == {command: ["applied"] for command in ids}
    assert_once(trainers, 33, before)
    run.training(*TRAINING)


@pytest.mark.long
def test_a_migration_cut_short_by_the_weavers_death_is_carried_to_its_end(run, trainers, until):
    leaver, others, joiner = trainers[0], trainers[1:], run.trainers["g3"][0]
    assert all_applied(run, until, run.ask("knob.set", {"knob": "counter", "value": 44})["ids"])
    answer = run.ask("propose", {"action": {"kind": "migrate", "group": "g0"}})
    assert answer["ok"], answer
    (join,) = answer["ids"]
    # The join is done and the standby waits before it trains: nothing is in flight.
    assert all_applied(run, until, [join]) == {join: ["applied"]}
    run.kill_weaver()
    assert not [b for _, b in run.records("issue") if b["command"]["do"]["verb"] == "drain"]
    joiner.hold.unlink()
    for trainer in others:
        trainer.goes_on()
    run.start_weaver()

    def ended():
        return [b for _, b in run.records("outcome") if b["action"]["kind"] == "migrate"]

    (outcome,) = until(ended)
    assert (outcome["result"], outcome["detail"]) == ("done", "g3-0 joined, then g0 drained")
    assert leaver.process.wait(DEADLINE_S) == 0
    joiner.goes_on()
    until(lambda: run.ask("knobs")["values"].get("g3-0", {}).get("counter") == 44)
    assert [row["value"] for row in joiner.journal("counter")] == [44]
    verdicts = [b["proposal"] for _, b in run.records("verdict") if b["granted"]]
    outcomes = [b["verdict"] for _, b in run.records("outcome")]
    assert sorted(verdicts) == sorted(outcomes)


def test_no_step_failed_in_all_of_this(run):
    for group in (*TRAINING, "g3"):
        rows = run.trainers[group][0].rows
        if group == "g3" and not rows:
            continue  # its migration is a long test
        assert all(row["committed"] for row in rows), group
        steps = [row["step"] for row in rows]
        assert steps == list(range(steps[0], steps[0] + len(steps))), group
