"""A pause of a live torchft run applies to all groups or to none, also after a kill or stop."""

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.long]

CONFIG = """
[weaver]
state_dir = "state"
tick_s = 0.25

[arbiter]
cooldown_s = 0
"""
GROUPS = ("g0", "g1")


@pytest.fixture(scope="module")
def run(start_run, lighthouse, until):
    """Two groups that train together."""
    run = start_run(CONFIG)
    run.start_weaver()
    for group in GROUPS:
        run.start_torchft(group, lighthouse)
    run.training(*GROUPS)
    for group in GROUPS:
        until(
            lambda group=group: (
                run.trainers[group][0].rows
                and run.trainers[group][0].rows[-1]["participants"] == len(GROUPS)
            )
        )
    return run


@pytest.fixture
def trainers(run):
    return [run.trainers[group][0] for group in GROUPS]


def outcome(run, until, answer):
    """Return the outcome of the action that was granted in the answer."""
    assert answer["ok"], answer

    def ended():
        cause = next(b["cause"] for _, b in run.records("command_status") if b["command"] == one)
        return [b for _, b in run.records("outcome") if b["verdict"] == cause]

    one = answer["ids"][0]
    return until(ended)[0]


def pause(run, until):
    """Pause all at one step, and return the outcome."""
    found = outcome(run, until, run.ask("propose", {"action": {"kind": "pause"}}))
    assert found["result"] == "done", found
    return found["detail"]


@pytest.mark.long
def test_a_pause_lasts_until_it_is_resumed(run, trainers, until):
    detail = pause(run, until)
    assert detail.startswith("2 workers paused at step ")
    done = [len(trainer.rows) for trainer in trainers]
    run.ticks(20)  # of 0.25 s: longer than a worker waits for the Weaver's pause message
    assert [len(trainer.rows) for trainer in trainers] == done
    assert run.ask("propose", {"action": {"kind": "resume"}})["ok"]
    for trainer in trainers:
        trainer.goes_on()


@pytest.mark.long
def test_a_group_that_misses_the_pause_delays_no_other(run, trainers, until):
    deaf = trainers[1].sidecar
    deaf.suspend()
    answer = run.ask("propose", {"action": {"kind": "pause"}})
    for trainer in trainers:
        trainer.goes_on()
    deaf.resume()
    found = outcome(run, until, answer)
    assert found["detail"].startswith("2 workers paused at step ")
    assert run.ask("propose", {"action": {"kind": "resume"}})["ok"]
    for trainer in trainers:
        trainer.goes_on()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_neither_the_kill_switch_nor_a_killed_weaver_leaves_anybody_paused(
    run, trainers, until, how
):
    pause(run, until)
    if how == "stop":
        assert run.ask("actions.stop")["ok"]
    else:
        run.kill_weaver()
    for trainer in trainers:
        trainer.goes_on()
    if how == "stop":
        assert run.ask("actions.resume")["ok"]
    else:
        run.start_weaver()
        run.training(*GROUPS)


def test_no_step_failed_in_all_of_this(run, trainers):
    for trainer in trainers:
        assert all(row["committed"] for row in trainer.rows)
        assert trainer.process.poll() is None
