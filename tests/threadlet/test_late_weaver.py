"""Trainers that start before their Weaver enrol when it starts."""

import msgspec
import pytest

from torchloom_core.wire.messages import Hello, JoinFile, Note
from torchloom_core.wire.operations import Join, SetKnob

pytestmark = pytest.mark.integration
AGAIN = {"TORCHELASTIC_RESTART_COUNT": "1"}


@pytest.fixture
def weaver_comes(join_file):
    """Remove the join file until the returned function is called."""
    text = join_file.read_bytes()
    join_file.unlink()
    return lambda: join_file.write_bytes(text)


@pytest.mark.parametrize("environment", [{}, AGAIN])
async def test_a_trainer_trains_at_once_and_enrols_when_the_weaver_starts(
    weaver, start_trainer, join_file, weaver_comes, environment
):
    trainer = start_trainer(**environment)
    await trainer.goes_on()
    assert trainer.journal("attached") == [{"event": "attached", "inert": False, "answered": True}]
    join_file.write_text('{"url": "nats://127')  # as if it were being written
    await trainer.goes_on()
    assert trainer.sidecars() == []
    weaver_comes()
    hello = await weaver.admit()
    assert "x" in {spec.name for spec in hello.knobs}
    assert (await weaver.ask(hello, SetKnob(knob="x", value=2.0))).status == "applied"
    assert trainer.errors.splitlines() == [
        f"no Weaver yet at {join_file}: training starts, and g0-0 enrols once the file exists",
        "found the Weaver: g0-0 enrols in run run",
    ]


async def test_notes_from_before_the_weavers_start_are_sent_then(
    weaver, start_trainer, weaver_comes
):
    trainer = start_trainer()
    await trainer.goes_on()
    weaver_comes()
    note = await weaver.event(Note, kind="log")
    assert (note.run, note.fields["text"][:13]) == ("run", "no Weaver yet")


async def test_a_standby_waits_for_its_weaver(weaver, start_trainer, join_file, weaver_comes):
    trainer = start_trainer(TORCHLOOM_ROLE="standby")
    await trainer.until(lambda: "the standby waits, and g0-0 enrols" in trainer.errors)
    weaver_comes()
    hello = await weaver.admit()
    assert (hello.state, trainer.journal("attached")) == ("standby", [])
    assert (await weaver.ask(hello, Join())).status == "applied"
    await trainer.goes_on()


async def test_a_trainer_that_comes_with_a_herd_enrols_later_over_the_same_connection(
    weaver, start_trainer, broker
):
    weaver.waits_s = [0.01, 0.01, 0.01]
    trainer = start_trainer()
    await weaver.admit()
    assert weaver.waits_s == []
    assert len(set(weaver.joined_on)) == 1
    assert trainer.errors.count("many workers enrol at once: g0-0 enrols later") == 1


@pytest.mark.long
async def test_the_join_file_of_another_runs_weaver_is_given_up(weaver, start_trainer, join_file):
    present = join_file.read_bytes()
    left = JoinFile(url="nats://127.0.0.1:9", run="yesterday", creds="")
    join_file.write_bytes(msgspec.json.encode(left))
    trainer = start_trainer()
    await trainer.until(lambda: "waiting for the Weaver of run yesterday" in trainer.errors)
    join_file.write_bytes(present)
    assert isinstance(await weaver.admit(), Hello)
    await trainer.goes_on()
    assert "Traceback" not in trainer.errors
