"""Trainers and rollouts of one run under a real Weaver: what is asked of one role is for it."""

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.long]

CONFIG = """
[weaver]
state_dir = "state"
tick_s = 0.2

[arbiter]
cooldown_s = 0

[policies.straggler]
min_workers = 2
patience = 3
roles = [{roles}]
"""
TRAINERS, ROLLOUTS = ("0-0", "1-0"), ("rollout-0-0", "rollout-1-0")
STRAGGLER = ROLLOUTS[1]


def start(start_run, roles):
    """Start two trainers and two rollouts, one of which takes fifteen times as long a step."""
    run = start_run(CONFIG.format(roles=roles))
    run.start_weaver()
    for group in ("0", "1"):
        run.start_light(group, "--step-s", 0.02)
    for group, step_s in (("0", 0.02), ("1", 0.3)):
        own = {"TORCHLOOM_ROLE": "rollout", "TORCHLOOM_GROUP": group}
        run.start_light(f"rollout-{group}", "--step-s", step_s, **own)
    run.training("0", "1", "rollout-0", "rollout-1")
    return run


def steps(run, workers):
    rows = {row["worker"]: row["step"] for row in run.ask("status")["workers"]}
    return [rows[worker] for worker in workers]


def go_on(run, until, workers):
    """Wait until the workers have made steps."""
    before = steps(run, workers)
    until(lambda: all(now > was for now, was in zip(steps(run, workers), before, strict=True)))


def accused(run):
    return [body for _, body in run.records("proposed") if body["policy"] == "straggler"]


def test_a_role_is_paused_tuned_and_judged_alone(start_run, until):
    run = start(start_run, '"trainer"')
    paused = run.torchloom("pause", "--role", "trainer")
    assert paused.returncode == 0, paused.stdout + paused.stderr
    assert "2 workers paused" in paused.stdout
    still = steps(run, TRAINERS)
    go_on(run, until, ROLLOUTS)
    assert [run.worker(worker)["state"] for worker in TRAINERS] == ["paused"] * 2
    assert steps(run, TRAINERS) == still
    assert run.torchloom("resume", "--role", "trainer").returncode == 0
    go_on(run, until, TRAINERS)

    refused = run.torchloom("knob", "set", "x", "2")
    assert refused.returncode != 0
    assert "name one with --role" in refused.stdout + refused.stderr
    assert run.torchloom("knob", "set", "x", "2", "--role", "rollout").returncode == 0
    values = {row["worker"]: row["knobs"]["x"] for row in run.ask("status")["workers"]}
    assert values == dict.fromkeys(TRAINERS, 1.0) | dict.fromkeys(ROLLOUTS, 2.0)
    listed = run.torchloom("knob", "list").stdout
    assert "rollout" in listed
    assert "role" in run.torchloom("status").stdout

    run.ticks(15)
    assert accused(run) == []


def test_a_policy_that_sees_both_roles_accuses_the_slow_rollout(start_run, until):
    run = start(start_run, '"trainer", "rollout"')
    (first, *_) = until(lambda: accused(run))
    assert STRAGGLER in str(first["proposal"])
