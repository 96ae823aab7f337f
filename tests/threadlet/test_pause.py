"""No worker stays paused without a Weaver: a pause lasts as long as it is confirmed."""

import pytest

from torchloom_core.wire.messages import Note
from torchloom_core.wire.operations import Pause, Resume

CAUSE = "p1.1"
UNCONFIRMED = "g0-0 resumes: its pause ended by itself, no Weaver confirmed it"
LAPSED = "g0-0 resumes: its pause ended by itself, the Weaver was silent for 3 s"

pytestmark = pytest.mark.integration


async def pause(weaver, trainer):
    hello = await weaver.admit()
    await trainer.goes_on()
    assert (await weaver.ask(hello, Pause(), "pause", cause=CAUSE)).status == "applied"
    await weaver.beat(lambda batch: batch.state == "paused")
    return hello


@pytest.mark.long
async def test_an_unconfirmed_pause_ends_by_itself_and_is_reported(weaver, start_trainer):
    trainer = start_trainer()
    await pause(weaver, trainer)
    assert (await weaver.event(Note, kind="pause_over")).fields == {"why": "no Weaver confirmed it"}
    await trainer.goes_on()
    assert trainer.errors.splitlines() == [UNCONFIRMED]


@pytest.mark.long
async def test_a_pause_ends_by_itself_when_the_weaver_is_silent(weaver, start_trainer):
    trainer = start_trainer()
    async with weaver.confirming_pause(CAUSE):
        await pause(weaver, trainer)
        done = len(trainer.journal("step"))
        await weaver.heartbeats(30)  # of 0.1 s: longer than it waits for the first confirmation
        assert len(trainer.journal("step")) == done
    await weaver.event(Note, kind="pause_over")
    await trainer.goes_on()
    assert trainer.errors.splitlines() == [LAPSED]


@pytest.mark.long
async def test_a_pause_ends_by_itself_when_the_sidecar_is_killed(weaver, start_trainer):
    trainer = start_trainer()
    async with weaver.confirming_pause(CAUSE):
        await pause(weaver, trainer)
    for sidecar in trainer.sidecars():
        sidecar.kill()
    await trainer.goes_on()


@pytest.mark.long
async def test_only_the_present_weaver_of_this_run_is_believed(weaver, start_trainer):
    trainer = start_trainer()
    async with weaver.confirming_pause(CAUSE):
        hello = await pause(weaver, trainer)
        await weaver.publish_pause("", epoch=0)
        await weaver.publish_pause("", role="rollout")
        await weaver.publish_pause("", run="another")
        await weaver.client.publish("tl.pause.run", b'{"stream": "TL_CMD_run", "seq": 1}')
        done = len(trainer.journal("step"))
        await weaver.heartbeats(5)
        assert len(trainer.journal("step")) == done
        await weaver.ask(hello, Resume(), "resume")
    await trainer.goes_on()
