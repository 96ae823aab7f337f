"""A run that ends of its own takes its standbys and its wanted knobs with it."""

import pytest

from tests.deadlines import DEADLINE_S

pytestmark = pytest.mark.integration

CONFIG = """
[weaver]
state_dir = "state"
tick_s = 0.1

[arbiter]
cooldown_s = 0
"""


@pytest.mark.long
def test_standbys_and_desired_values_end_with_the_loop_of_the_last_worker(start_run, until):
    run = start_run(CONFIG)
    run.start_weaver()
    standby = run.start_light("s", TORCHLOOM_ROLE="standby")
    spare = run.start_light("t", TORCHLOOM_ROLE="standby")
    until(lambda: all(_waits(run.worker(name)) for name in ("s-0", "t-0")))
    assert run.torchloom("drain", "t").stdout.endswith("done: t drained\n")
    assert spare.process.wait(DEADLINE_S) == 0
    trainer = run.start_light("g0", "--step-s", "0.02", "--end-when-set")
    run.training("g0")
    assert run.ask("knob.set", {"knob": "x", "value": 2.0})["ok"]
    assert trainer.process.wait(DEADLINE_S) == 0
    assert standby.process.wait(DEADLINE_S) == 0
    assert run.ask("knobs")["desired"] == []
    log = run.weaver.errors.read_text()
    assert (
        "notice: the run is over: its last workers ended normally; standbys drained: s-0; "
        "desired values dropped: x = 2.0\n"
    ) in log


def _waits(worker):
    return worker is not None and worker["state"] == "standby"
