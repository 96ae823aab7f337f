"""A pipeline under a real Weaver: seen, regrouped through the arbiter, and independent of it."""

import pytest

from tests.pipeline.fleet import Fleet

pytestmark = [pytest.mark.integration, pytest.mark.long]

CONFIG = """
[weaver]
state_dir = "state"
tick_s = 0.2

[arbiter]
cooldown_s = 0

[rendezvous]
address = "{address}"

[policies.replan]
settle_s = 0.5
"""
WORKERS = ("w0", "w1", "w2", "w3")


@pytest.fixture
def fleet(tmp_path):
    made = Fleet(tmp_path, 4)
    yield made
    made.close()


def test_a_loss_is_seen_and_a_joiner_is_taken_in_by_the_arbiter(fleet, start_run, until):
    run = start_run(CONFIG.format(address=fleet.address))
    run.start_weaver()
    more = {"join": str(run.state / "join.json"), "step_s": 0.02, "scheduler": None}
    fleet.start(10**6, *WORKERS, **more)

    def program():
        (found,) = run.ask("status")["programs"]
        return found

    def generation():
        return (program()["outlook"].get("assignment") or {}).get("generation", 0)

    def workers():
        routes = program()["outlook"]["assignment"]["routes"]
        return {stage[0] for route in routes for stage in route}

    def outcomes():
        found = [body for _, body in run.records("outcome")]
        return [body["result"] for body in found if body["policy"] == "replan"]

    until(lambda: generation() == 1)
    until(lambda: max(fleet.losses("w0"), default=0) >= 10)
    fleet.processes["w3"].kill()
    until(lambda: generation() >= 2)
    assert program()["generations"][1]["cause"]
    fleet.start(10**6, "w4", **more)
    until(lambda: "w4" in workers())
    until(lambda: outcomes() == ["done"])
    assert program()["generations"][-1].get("cause", "") == ""
    asked = run.torchloom("regroup", "--without", "w1")
    assert asked.returncode == 0, asked.stdout + asked.stderr
    assert "without w1" in asked.stdout
    assert "w1" not in workers()
    assert f"trainer: generation {generation()} (without w1" in run.torchloom("status").stdout
    old = run.torchloom("regroup", "--generation", 1)
    assert f"generation 1 is over: {generation()} runs" in old.stdout + old.stderr
    run.kill_weaver()
    fleet.processes["w2"].kill()
    reached = max(fleet.losses("w0"))
    until(lambda: max(fleet.losses("w0")) > reached + 5)
