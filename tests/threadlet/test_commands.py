"""Commands through a real broker, a real sidecar and a real trainer."""

import os
import signal

import msgspec
import nats
import pytest
from nats.aio.client import RawCredentials

from tests.waiting import eventually
from torchloom_core.live.transport.security import nats_jwt
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import decode_ack
from torchloom_core.wire.messages import Exit, Hello, Note
from torchloom_core.wire.operations import (
    Cut,
    Drain,
    Dump,
    Join,
    Pause,
    Prepare,
    Resume,
    SetKnob,
    Terminate,
)

pytestmark = pytest.mark.integration


async def test_a_hello_has_the_workers_identity_and_abilities(weaver, start_trainer):
    trainer = start_trainer(TORCHLOOM_NODE="n.1", TORCHLOOM_RACK="r1", TORCHLOOM_RANK="2")
    hello = await weaver.until(
        lambda: next((e for e in weaver.events if isinstance(e, Hello) and len(e.knobs) == 3), None)
    )
    assert (hello.worker, hello.group, hello.rank) == ("g0-2", "g0", 2)
    assert (hello.node, hello.rack, hello.framework) == ("n_1", "r1", "test")
    assert hello.pid == trainer.process.pid
    assert hello.values == {"x": 1.0, "fenced_change": 1, "log_level": "warning"}
    hello = await weaver.until(
        lambda: next((e for e in weaver.events if "checkpoint" in e.actuators), None)
    )
    assert set(hello.actuators) == {
        *("checkpoint", "drain", "dump", "freeze", "pause", "resume"),
        *("set_knob", "terminate", "write_log"),
    }


async def test_a_knob_is_set_once_and_every_stage_is_acknowledged(weaver, start_trainer):
    trainer = start_trainer()
    hello = await weaver.admit()
    await trainer.goes_on()
    ack = await weaver.ask(hello, SetKnob(knob="x", value=7))
    assert ack.status == "applied"
    assert ack.step >= 0
    assert [a.status for a in weaver.acks] == ["delivered", "accepted", "applied"]
    assert trainer.journal("set") == [{"event": "set", "value": 7.0}]


async def test_no_worker_can_make_anothers_final_ack_look_repeated(weaver, start_trainer, broker):
    seed = nats_jwt.new_seed("user")
    jwt = broker.credentials.worker_jwt("g9-0", 1, nats_jwt.public_key(seed))
    attacker = await nats.connect(
        broker.url,
        user_credentials=RawCredentials(nats_jwt.creds_text(jwt, seed)),
        inbox_prefix=subjects.inbox_prefix("run", "g9-0", 1),
    )
    for name in ("c1:1:applied", "c1:1:applied:"):
        headers = {"Nats-Msg-Id": name}
        await attacker.jetstream().publish(subjects.ack("run", "g9-0", 1), b"{}", headers=headers)
    await attacker.close()
    start_trainer()
    await weaver.ask(await weaver.admit(), SetKnob(knob="x", value=7))

    async def is_stored():
        last = await weaver.js.get_last_msg("TL_REPORT_run", subjects.ack("run", "g0-0"))
        return decode_ack(last.data).status == "applied"

    await eventually(is_stored)


@pytest.mark.long
@pytest.mark.parametrize(
    ("operation", "status", "why"),
    [
        (
            SetKnob(knob="y", value=1.0),
            "rejected",
            "no knob is called 'y'; there are fenced_change, log_level, x",
        ),
        (SetKnob(knob="x", value=101.0), "rejected", "need at most 100, was 101.0"),
        (SetKnob(knob="x", value="high"), "rejected", "need a number, was 'high'"),
        (SetKnob(knob="fenced_change", value=2), "rejected", "run-fenced"),
        (SetKnob(knob="x", value=13.0), "failed", "RuntimeError: thirteen is unlucky"),
        (Join(), "rejected", "need a standby, the worker is training"),
        (Prepare(), "rejected", "need a standby that waits in attach(held=True)"),
    ],
)
async def test_an_impossible_command_is_answered_with_the_reason(
    weaver, start_trainer, operation, status, why
):
    trainer = start_trainer()
    hello = await weaver.admit()
    await trainer.goes_on()
    ack = await weaver.ask(hello, operation)
    assert ack.status == status
    assert why in ack.detail
    await trainer.goes_on()
    assert trainer.journal("set") == []


async def test_a_paused_worker_waits_runs_commands_and_resumes(weaver, start_trainer):
    trainer = start_trainer()
    hello = await weaver.admit()
    await trainer.goes_on()
    async with weaver.confirming_pause("p1.1"):
        paused_at = (await weaver.ask(hello, Pause(), "pause", cause="p1.1")).step
        await weaver.beat(lambda batch: batch.state == "paused")
        assert (await weaver.ask(hello, SetKnob(knob="x", value=3.0), "set")).step == paused_at
        assert len(trainer.journal("step")) == paused_at
        await weaver.ask(hello, Resume(), "resume")
    await trainer.goes_on()


async def test_a_drained_worker_leaves_its_loop_and_ends_as_expected(weaver, start_trainer):
    trainer = start_trainer()
    hello = await weaver.admit()
    await trainer.goes_on()
    ack = await weaver.ask(hello, Drain())
    assert ack.status == "applied"
    assert await trainer.ended() == 0
    assert trainer.journal("drain") == [{"event": "drain"}]
    assert trainer.journal("end") == [{"event": "end", "state": "left"}]
    end = await weaver.event(Exit)
    assert (end.status, end.expected) == (0, True)


async def test_a_loop_that_continues_after_a_drain_exits_with_status_0_and_one_line(
    weaver, start_trainer
):
    trainer = start_trainer("--go-on")
    hello = await weaver.admit()
    await trainer.goes_on()
    assert (await weaver.ask(hello, Drain())).status == "applied"
    end = await weaver.event(Exit)
    assert (end.status, end.expected) == (0, True)
    assert await trainer.ended() == 0
    line = "g0-0 was drained but its loop continues: exiting with status 0"
    assert trainer.errors.splitlines() == [line]


async def test_a_standby_waits_until_the_command_to_join(weaver, start_trainer):
    trainer = start_trainer(TORCHLOOM_ROLE="standby")
    hello = await weaver.admit()
    assert (hello.state, "join" in hello.actuators) == ("standby", True)
    refused = await weaver.ask(hello, Pause(), "pause")
    assert refused.detail == "the worker is a standby"
    # Without held=True the name of its Manager is unknown.
    refused = await weaver.ask(hello, Prepare(), "prepare")
    assert refused.detail == "need a standby that waits in attach(held=True)"
    assert trainer.journal("attached") == []
    assert (await weaver.ask(hello, Join(), "join")).status == "applied"
    await trainer.goes_on()
    await weaver.beat(lambda batch: batch.state == "training")


async def test_a_dismissed_standby_exits_with_status_0(weaver, start_trainer):
    trainer = start_trainer(TORCHLOOM_ROLE="standby")
    hello = await weaver.admit()
    assert (await weaver.ask(hello, Drain())).status == "applied"
    assert await trainer.ended() == 0
    assert trainer.journal("attached") == []
    end = await weaver.event(Exit)
    assert (end.status, end.expected) == (0, True)


async def test_a_dump_brings_the_stacks_even_of_a_trainer_that_hangs(weaver, start_trainer):
    trainer = start_trainer("--hang-at", "3")
    hello = await weaver.admit()
    await trainer.until(lambda: len(trainer.journal("step")) == 3)
    assert (await weaver.ask(hello, Dump())).status == "applied"
    note = await weaver.event(Note, kind="dump")
    assert "wait_for_ever" in note.fields["stacks"]


async def test_a_stopped_trainer_is_terminated_by_its_sidecar(weaver, start_trainer):
    trainer = start_trainer()
    hello = await weaver.admit()
    await trainer.goes_on()
    refused = await weaver.ask(hello, Cut(quorum_id=1), "cut")
    assert refused.detail == "no framework adapter knows the connections of a quorum"
    os.kill(trainer.process.pid, signal.SIGSTOP)
    ack = await weaver.ask(hello, Terminate(), "end")
    assert ack.status == "applied"
    end = await weaver.event(Exit)
    assert (end.status, end.expected) == (-9, False)
    assert await trainer.ended() == -9


async def test_a_command_to_another_incarnation_or_past_its_deadline_terminates_no_process(
    weaver, start_trainer
):
    trainer = start_trainer()
    hello = await weaver.admit()
    for other in ({"incarnation": hello.incarnation + 1}, {"worker": "g1-0"}, {"run": "other"}):
        command = msgspec.structs.replace(weaver.command(hello, Terminate()), **other)
        await weaver.send_once(hello, command)
    await weaver.send_once(hello, weaver.command(hello, Terminate(), "late", ttl_s=-1.0))
    assert (await weaver.final("late")).status == "expired"
    assert {ack.command for ack in weaver.acks} == {"late"}
    await trainer.goes_on()


async def test_a_restarted_worker_registers_again_and_gets_its_knobs_again(
    weaver, start_trainer, broker
):
    first = start_trainer(name="first")
    before = await weaver.admit()
    first.process.kill()
    await weaver.event(Exit)
    weaver.enrolment.release("g0-0")
    assert await first.ended() == -9
    second = start_trainer(name="second")
    after = await weaver.until(
        lambda: next(
            (
                event
                for event in weaver.events
                if isinstance(event, Hello) and event.incarnation > before.incarnation
            ),
            None,
        )
    )
    await second.goes_on()
    await weaver.admit(incarnation=after.incarnation)
    assert (await weaver.ask(after, SetKnob(knob="x", value=9.0))).status == "applied"
    assert second.journal("set") == [{"event": "set", "value": 9.0}]


async def test_commands_sent_again_to_another_sidecar_do_not_run_twice(weaver, start_trainer):
    trainer = start_trainer()
    hello = await weaver.admit()
    await trainer.goes_on()
    values = {"c1": 7.0, "c2": 8.0}
    for command_id, value in values.items():
        await weaver.ask(hello, SetKnob(knob="x", value=value), command_id)
    weaver.acks.clear()
    [sidecar] = trainer.sidecars()
    sidecar.kill()
    for command_id, value in values.items():
        again = await weaver.ask(hello, SetKnob(knob="x", value=value), command_id)
        assert again.status == "applied"
    assert [line["value"] for line in trainer.journal("set")] == [7.0, 8.0]
