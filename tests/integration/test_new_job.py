"""A job that is started anew under torchrun does not train at yesterday's learning rate."""

import pytest

from tests.integration.conftest import until
from tests.integration.torchrun_job import Job

pytestmark = [pytest.mark.integration, pytest.mark.long]
CONFIG = "[weaver]\nstate_dir = 'state'"


def test_a_new_job_requests_confirmation_of_earlier_knobs_and_a_restart_inherits_them(start_run):
    run = start_run(CONFIG)
    run.start_weaver()
    first = Job(run, "first")
    first.trains_at(0.001)
    assert run.torchloom("knob", "set", "lr", "0.005").returncode == 0
    first.trains_at(0.005)
    first.end()

    second = Job(run, "second")
    second.trains_at(0.001, steps=60)
    assert set(second.rates(0)) == set(second.rates(1)) == {0.001}
    text = "set in an earlier job: lr = 0.005"
    assert text in second.log
    assert text in run.weaver.errors.read_text()
    assert "lr = 0.005" in run.torchloom("status").stdout
    (waiting,) = run.ask("status")["knobs_waiting"]
    assert (waiting["knob"], waiting["value"]) == ("lr", 0.005)

    taken = run.torchloom("knob", "take")
    assert "done: lr = 0.005 on 2 workers" in taken.stdout, taken.stderr
    second.trains_at(0.005)
    assert run.ask("status")["knobs_waiting"] == []

    second.kill_a_rank()
    until(lambda: "restored after the restart: lr = 0.005" in second.log)
    assert "restored after the restart: lr = 0.005" in run.weaver.errors.read_text()
    second.trains_at(0.005)
    second.end()


def test_a_job_whose_ranks_end_before_they_attach_is_shown_as_crash_looping(start_run):
    run = start_run(CONFIG)
    run.start_weaver()
    job = Job(run, "looping", "--dies-when-restarted", "no gloo today", restarts=2)
    job.trains_at(0.001)
    job.kill_a_rank()
    until(lambda: run.ask("status")["crash_loops"])
    assert "crash-looping: " in run.torchloom("status").stdout
    until(
        lambda: (
            "of 2: RuntimeError: no gloo today" in " ".join(run.torchloom("status").stdout.split())
        )
    )
    job.process.wait()
    until(lambda: run.ask("status")["crash_loops"][0]["gave_up"])
    (loop,) = run.ask("status")["crash_loops"]
    # On a busy machine a restart may be over before the first check.
    assert (loop["restart"], loop["most"]) == (2, 2)
    assert "crash-looping: " in run.weaver.errors.read_text()
