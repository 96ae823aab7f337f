"""Standbys that are admitted train beside the groups that are there, under a real torchft."""

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.long]

CONFIG = """
[weaver]
state_dir = "state"
tick_s = 0.1

[arbiter]
cooldown_s = 0

[policies.membership]
keep_warm = 1
"""


def test_standbys_beyond_the_warm_number_are_admitted_and_a_person_admits_the_rest(
    start_run, lighthouse, until
):
    run = start_run(CONFIG)
    run.start_weaver()
    trains = run.start_torchft("g0", lighthouse)
    run.training("g0")
    until(lambda: trains.rows)
    for group in ("g1", "g2"):
        run.start_torchft(group, lighthouse, TORCHLOOM_ROLE="standby")
    until(lambda: _states(run)["training"] == 2)
    until(lambda: run.records("outcome"))
    ((_, outcome),) = run.records("outcome")
    admitted = outcome["action"]["group"]
    assert (outcome["policy"], outcome["result"]) == ("membership", "done")
    assert outcome["detail"] == f"{admitted} joined"
    run.ticks(10)
    assert _states(run) == {"training": 2, "standby": 1}

    (remaining,) = {"g1", "g2"} - {admitted}
    result = run.torchloom("admit", remaining)
    assert result.stdout.endswith(f"done: {remaining} joined\n"), result.stderr
    participants = {"g0", "g1", "g2"}
    run.training(*participants)
    until(lambda: trains.rows[-1]["participants"] == 3)
    assert all(row["committed"] for row in trains.rows)


def _states(run):
    states = [worker["state"] for worker in run.ask("status")["workers"]]
    return {state: states.count(state) for state in ("training", "standby")}
