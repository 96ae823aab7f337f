"""Replica groups of torchft are suspended at one step, and none trains on without the others."""

import psutil
import pytest

from tests.integration.conftest import until
from tests.integration.test_suspend import CONFIG, act, suspend

pytestmark = [pytest.mark.integration, pytest.mark.long]
GROUPS = ("g0", "g1")


@pytest.fixture
def trainers(start_run, lighthouse):
    run = start_run(CONFIG)
    run.start_weaver()
    for group in GROUPS:
        run.start_torchft(group, lighthouse)
    run.training(*GROUPS)
    found = [run.trainers[group][0] for group in GROUPS]
    for one in found:
        until(lambda one=one: one.rows and one.rows[-1]["participants"] == len(GROUPS))
    found[0].run = run
    yield found
    for one in found:  # the next test's groups share the lighthouse
        one.end()


def test_frozen_groups_go_on_together_though_the_lighthouse_has_missed_them(trainers):
    run = trainers[0].run
    suspend(run, "frozen")
    done = [len(one.rows) for one in trainers]
    for one in trainers:
        assert psutil.Process(one.process.pid).status() == psutil.STATUS_STOPPED
    run.ticks(16)  # of 0.25 s: longer than the lighthouse's heartbeat timeout
    assert [len(one.rows) for one in trainers] == done
    assert act(run, kind="resume")["result"] == "done"
    for one, before in zip(trainers, done, strict=True):
        one.goes_on()
        after = one.rows[before - 1 :]
        assert all(row["committed"] for row in after)
        assert {row["participants"] for row in after} == {len(GROUPS)}
        steps = [row["step"] for row in after]
        assert steps == list(range(steps[0], steps[0] + len(steps)))


def test_stored_groups_save_and_leave_at_one_step(trainers):
    run = trainers[0].run
    step = suspend(run, "stored")
    for one in trainers:
        assert one.process.wait(100) == 0, one.errors
        assert one.rows[-1]["step"] == trainers[0].rows[-1]["step"]
    saved = [one.journal("checkpoint")[-1]["step"] for one in trainers]
    assert saved[0] == saved[1]
    assert saved[0] in (step, step + 1)
