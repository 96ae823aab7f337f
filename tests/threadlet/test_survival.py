"""Training continues, and commands run once, whatever dies."""

import asyncio
import contextlib
import os
import signal
import time
from array import array

import msgspec
import psutil
import pytest

from tests.deadlines import DEADLINE_S
from tests.waiting import soon
from torchloom_core.wire.messages import Exit, Hello, JoinFile, Note
from torchloom_core.wire.operations import Checkpoint, Pause, Resume, SetKnob

pytestmark = pytest.mark.integration


def times(batch):
    return array("q", batch.ts_ns)


@pytest.mark.long
async def test_a_killed_sidecar_is_replaced_and_repeats_no_command(weaver, start_trainer):
    trainer = start_trainer()
    hello = await weaver.admit()
    await trainer.goes_on()
    assert (await weaver.ask(hello, Checkpoint(), "before")).status == "applied"
    newest = weaver.telemetry[-1].seq
    for killed in range(2):
        [sidecar] = await trainer.until(trainer.sidecars)
        sidecar.kill()
        await trainer.until(
            lambda gone=sidecar.pid: [s for s in trainer.sidecars() if s.pid != gone]
        )
        await trainer.goes_on()
        assert (await weaver.ask(hello, Checkpoint(), f"after{killed}")).status == "applied"
    again = await weaver.ask(hello, Checkpoint(), "before", epoch=2)
    assert again.status == "applied"
    assert len(trainer.journal("checkpoint")) == 3
    await weaver.beat(lambda batch: batch.seq > newest)
    numbers = [batch.seq for batch in weaver.telemetry]
    assert numbers == sorted(numbers)


@pytest.mark.long
async def test_a_command_whose_sidecar_dies_is_still_run_and_answered_once(weaver, start_trainer):
    trainer = start_trainer("--step-s", "2.0")
    hello = await weaver.admit()
    await weaver.send(hello, Checkpoint())
    await weaver.until(lambda: [ack for ack in weaver.acks if ack.status == "accepted"])
    [sidecar] = trainer.sidecars()
    sidecar.kill()
    assert (await weaver.final()).status == "applied"
    assert len(trainer.journal("checkpoint")) == 1


@pytest.mark.long
async def test_an_ack_lost_with_its_sidecar_is_sent_by_the_next(weaver, start_trainer):
    trainer = start_trainer("--step-s", "2.0")
    hello = await weaver.admit()
    await weaver.send_once(hello, weaver.command(hello, Checkpoint()))
    await weaver.until(lambda: [ack for ack in weaver.acks if ack.status == "accepted"])
    [sidecar] = trainer.sidecars()
    sidecar.suspend()
    await trainer.until(lambda: trainer.journal("checkpoint"))
    sidecar.kill()
    assert (await weaver.final()).status == "applied"


async def test_a_killed_broker_delays_commands_and_samples(weaver, start_trainer, broker):
    trainer = start_trainer()
    hello = await weaver.admit()
    await trainer.goes_on()
    assert (await weaver.ask(hello, Pause(), "pause")).status == "applied"
    await weaver.send(hello, SetKnob(knob="x", value=2.0), "set")
    await weaver.send(hello, Resume(), "resume")
    server = psutil.Process(broker.pid)
    server.kill()
    await asyncio.to_thread(psutil.wait_procs, [server], DEADLINE_S)
    killed_ns = time.time_ns()
    await trainer.goes_on()
    started_ns = time.time_ns()
    await broker.start()
    assert (await weaver.final("set")).status == "applied"
    assert (await weaver.final("resume")).status == "applied"
    await trainer.goes_on()
    assert trainer.journal("set") == [{"event": "set", "value": 2.0}]
    await weaver.beat(lambda batch: any(killed_ns < ns < started_ns for ns in times(batch)))
    await weaver.send_roll_call()  # as the Weaver does when it is back: it may have missed a hello
    await weaver.until(lambda: sum(isinstance(event, Hello) for event in list(weaver.events)) >= 2)


async def test_training_waits_neither_for_an_absent_broker_nor_for_a_late_one(
    weaver, start_trainer, broker
):
    await broker.stop()
    trainer = start_trainer()
    await trainer.goes_on()
    await broker.start()
    hello = await weaver.admit()
    batch = await weaver.beat(lambda batch: batch.step > 0)
    assert batch.incarnation == hello.incarnation
    assert (await weaver.ask(hello, Checkpoint())).status == "applied"


@pytest.mark.long
@pytest.mark.parametrize("enrol", [True, False])
async def test_a_weaver_restarted_elsewhere_is_found_by_its_new_join_file(
    weaver, start_trainer, join_file, enrol
):
    good = join_file.read_bytes()
    nowhere = JoinFile(url="nats://127.0.0.1:9", run="run", creds="", enrol=enrol)
    join_file.write_bytes(msgspec.json.encode(nowhere))
    trainer = start_trainer()
    await trainer.goes_on()
    join_file.write_bytes(good)
    hello = await weaver.admit()
    assert (await weaver.ask(hello, Checkpoint())).status == "applied"


@pytest.mark.long
async def test_a_roll_call_is_answered(weaver, start_trainer):
    start_trainer()
    await weaver.admit()
    await weaver.beat(lambda batch: batch.step > 0)
    before = len(weaver.events)
    await weaver.send_roll_call()
    await weaver.until(lambda: len(weaver.events) > before)
    assert isinstance(weaver.events[-1], Hello)
    assert weaver.events[-1].state == "training"


async def test_a_trainer_that_cannot_start_a_sidecar_trains_on(start_trainer, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "nats.py").write_text("raise ImportError('no nats here')")
    path = os.pathsep.join(filter(None, [str(broken), os.environ.get("PYTHONPATH")]))
    trainer = start_trainer("--steps", "100", PYTHONPATH=path)
    assert await trainer.ended() == 0
    assert len(trainer.journal("step")) == 100


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "status", "expected", "error"),
    [
        (("--steps", "5"), 0, True, ""),
        (("--crash-at", "5"), 1, False, "ValueError: the loss is gone"),
        (("--kill-at", "5"), -9, False, ""),
    ],
)
async def test_the_end_of_a_trainer_is_reported_with_its_status(
    weaver, start_trainer, arguments, status, expected, error
):
    trainer = start_trainer(*arguments)
    end = await weaver.event(Exit)
    assert (end.status, end.expected, end.error) == (status, expected, error)
    assert await trainer.ended() == status


@pytest.mark.long
@pytest.mark.parametrize("status", [0, 1])
async def test_the_end_of_a_trainer_that_kills_its_children_first_is_reported(
    weaver, start_trainer, status
):
    trainer = start_trainer("--end-when-set", "--kill-children", *["--fail"] * status)
    hello = await weaver.admit()
    await weaver.send(hello, SetKnob(knob="x", value=2.0))
    assert await trainer.ended() == status
    end = await weaver.event(Exit)
    assert (end.status, end.expected) == (status, status == 0)
    assert end.error == ("ValueError: failed at last" if status else "")
    assert (await weaver.final()).status == "applied"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_trainer_ended_by_a_signal_has_ended_as_expected(weaver, start_trainer, number):
    trainer = start_trainer()
    await weaver.admit()
    await trainer.goes_on()
    trainer.process.send_signal(number)
    end = await weaver.event(Exit)
    assert (end.status, end.expected, end.error) == (-number, True, "")


async def test_a_sidecar_does_not_outlive_its_trainer(weaver, start_trainer):
    trainer = start_trainer()
    await weaver.admit()
    [sidecar] = await trainer.until(trainer.sidecars)
    trainer.process.kill()
    await asyncio.to_thread(trainer.process.wait)
    await asyncio.to_thread(sidecar.wait, DEADLINE_S)


@pytest.mark.long
async def test_a_hang_is_reported_once_with_the_stacks(weaver, start_trainer):
    trainer = start_trainer("--hang-at", "5", TORCHLOOM_HANG_AFTER_S="0.5")
    await weaver.admit()
    note = await weaver.event(Note, kind="hang")
    assert "wait_for_ever" in note.fields["stacks"]
    assert note.fields["progress_age_s"] > 0.5
    age_s = note.fields["progress_age_s"]
    await weaver.beat(lambda batch: batch.progress_age_s > age_s + 1.0)
    assert len([e for e in weaver.events if isinstance(e, Note) and e.kind == "hang"]) == 1
    assert trainer.process.poll() is None


@pytest.mark.long
@pytest.mark.parametrize("greeting", [b'{"version": 7, "max_payload": "x"}', b"[]", b"{}", b"null"])
async def test_a_server_that_greets_with_nonsense_ends_no_sidecar(
    start_trainer, join_file, greeting
):
    writers = []

    async def serve(reader, writer):
        writers.append(writer)
        writer.write(b"INFO " + greeting + b"\r\n")
        greeted.set()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    greeted = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    join = JoinFile(url=f"nats://127.0.0.1:{port}", run="run", creds="")
    join_file.write_bytes(msgspec.json.encode(join))
    trainer = start_trainer()
    await trainer.goes_on()
    await soon(greeted.wait())
    await trainer.until(lambda: trainer.errors)
    assert "Traceback" not in trainer.errors
    assert "fault of its own" not in trainer.errors
    assert "the sidecar ended after" not in trainer.errors
    server.close()
    for writer in writers:
        writer.transport.abort()
