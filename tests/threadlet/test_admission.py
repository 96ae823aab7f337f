"""A process that torchrun restarts waits for its admission to its node."""

import pytest

import torchloom_threadlet
from torchloom_core.wire.messages import Hello

pytestmark = pytest.mark.integration
AGAIN = {"TORCHELASTIC_RESTART_COUNT": "1", "TORCHLOOM_NODE": "n1"}


async def test_a_restarted_worker_that_is_not_admitted_exits_with_status_0_and_one_line(
    weaver, start_trainer
):
    weaver.unwanted = "node n1 is cordoned and 2 other groups train"
    trainer = start_trainer(**AGAIN)
    assert await trainer.ended() == 0
    line = f"g0-0 is not readmitted: {weaver.unwanted}; the process exits with status 0"
    assert trainer.errors.splitlines() == [line]
    assert trainer.journal("attached") == []


async def test_a_worker_started_by_hand_on_a_cordoned_node_trains_after_one_warning(
    weaver, start_trainer
):
    weaver.unwanted = "node n1 is cordoned and 2 other groups train"
    trainer = start_trainer(TORCHLOOM_NODE="n1")
    await trainer.until(lambda: trainer.errors)
    await trainer.goes_on()
    assert trainer.errors.splitlines() == [f"g0-0 trains without the Weaver: {weaver.unwanted}"]
    assert not [event for event in weaver.events if isinstance(event, Hello)]


async def test_a_restarted_worker_that_is_admitted_trains_and_enrols_with_its_node(
    weaver, start_trainer
):
    trainer = start_trainer(**AGAIN)
    assert (await weaver.admit()).node == "n1"
    await trainer.goes_on()


async def test_a_restarted_worker_does_not_wait_for_an_absent_broker(weaver, start_trainer, broker):
    await broker.stop()
    trainer = start_trainer(**AGAIN)
    await trainer.goes_on()
    assert trainer.journal("attached")[0]["answered"]  # by its sidecar: there is no Weaver


async def test_a_waiting_sidecar_logs_the_run_and_address_of_its_weaver(start_trainer, broker):
    trainer = start_trainer()
    await trainer.until(lambda: trainer.errors)
    line = f"torchloom sidecar: WARNING: waiting for the Weaver of run run at {broker.url}: "
    assert trainer.errors.startswith(line)


def test_one_warning_is_logged_whatever_the_number_of_other_groups(caplog):
    worker = torchloom_threadlet.attach()._worker
    caplog.clear()
    for others in (2, 3, 2):
        worker.admitted(f"node n1 is cordoned and {others} other groups train")
    assert len(caplog.messages) == 1
    worker.admitted("")
    worker.admitted("node n1 is cordoned and 1 other group trains")
    assert len(caplog.messages) == 2
