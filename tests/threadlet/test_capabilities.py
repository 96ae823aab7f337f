"""Operations of anyone's packages: found, offered, refused, done and failed, in both processes."""

import os
import subprocess
import sys

import msgspec
import pytest

from tests.installing import install
from tests.threadlet.standbys import command, refusal, worker_with
from torchloom_core.wire.messages import Hello
from torchloom_core.wire.operations import (
    Checkpoint,
    Drain,
    Dump,
    FencedChange,
    Resume,
    Rewind,
    SetKnob,
    SetKnobs,
)
from torchloom_threadlet import attach
from torchloom_threadlet.capabilities import checkpoint, drain, dump, knob, pause, rewind
from torchloom_threadlet.testing import TrainerCapabilityContract

PACKAGE = """
import msgspec
from torchloom_core.wire.operations import Operation
from torchloom_threadlet.capability import OperationError, SidecarPart, TrainerPart


class Flush(msgspec.Struct, Operation, frozen=True, tag_field="verb", tag="flush"):
    lines: int = 1


class Where(msgspec.Struct, Operation, frozen=True, tag_field="verb", tag="where"):
    pass


class FlushPart(TrainerPart[Flush]):
    operation = Flush
    need = "need a function to flush: call loom.on('flush', flush) in the script"
    fenced = "possible"

    def do(self, operation, trainer):
        if operation.lines < 0:
            raise OperationError(f"need lines >= 0, was {operation.lines}")
        with trainer.phase("flush", at_most_s=10):
            for flush in trainer.functions:
                flush(operation.lines)
        trainer.note("flushed", {"lines": operation.lines, "of": trainer.worker})
        return f"flushed {operation.lines} at step {trainer.step}"


class WherePart(SidecarPart[Where]):
    operation = Where

    async def do(self, operation, sidecar):
        return f"beside {sidecar.worker}"


PARTS = (FlushPart(), WherePart())
"""


class TestCheckpoint(TrainerCapabilityContract):
    part, operation = checkpoint.CheckpointPart, Checkpoint()


class TestRewind(TrainerCapabilityContract):
    part, operation = rewind.RewindPart, Rewind(skip=3)


class TestDrain(TrainerCapabilityContract):
    part, operation = drain.DrainPart, Drain()


class TestDump(TrainerCapabilityContract):
    part, operation = dump.DumpPart, Dump()


class TestResume(TrainerCapabilityContract):
    part, operation = pause.ResumePart, Resume()


class TestKnob(TrainerCapabilityContract):
    part, operation = knob.SetKnobPart, SetKnob(knob="lr", value=0.5)

    def prepare(self, loom):
        loom.knob("lr", lambda: 0.1, lambda value: None)


class TestKnobs(TrainerCapabilityContract):
    part, operation = knob.SetKnobsPart, SetKnobs(values={"width": 2})

    def prepare(self, loom):
        loom.knob("width", lambda: 1, lambda value: None, kind="int", fence="run")


@pytest.mark.parametrize("operation", [SetKnobs(values={"lr": 1.0}), Rewind()])
def test_what_needs_all_ranks_is_refused_alone(operation):
    verb = operation.__struct_config__.tag
    assert refusal(worker_with(), operation, "training") == (
        f"{verb} needs all ranks: send it as a fenced change"
    )


def test_what_is_done_alone_is_refused_in_a_fenced_change():
    worker = worker_with()
    worker.changes.can_vote = True
    change = FencedChange(number=1, do=Dump())
    assert refusal(worker, change, "training") == "dump cannot be part of a fenced change"


def test_a_function_for_an_unknown_operation_is_warned_of(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TORCHLOOM_JOIN", str(tmp_path / "join.json"))
    loom = attach(group="unknown")
    loom.on("checkpont", print)
    loom.on("checkpoint", print)
    loom.close()
    [warning] = [text for text in caplog.messages if "loom.on" in text]
    assert warning.startswith("loom.on('checkpont'): no installed package has this operation")
    assert "did you mean checkpoint?" in warning


def run(tmp_path, script, module=PACKAGE, value="PARTS"):
    """Run a script beside an installed package."""
    points = {"flush": f"foreign:{value}"}
    install(tmp_path, "foreign", module, {"torchloom.trainer_capabilities": points})
    return subprocess.run(
        [sys.executable, "-c", "import logging; logging.basicConfig()\n" + script],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:."},
        capture_output=True,
        text=True,
        check=True,
    )


USE = """
from tests.threadlet.standbys import command, worker_with
from foreign import Flush
worker = worker_with(standby=False)
refused = worker.operations.refusal(command(Flush()))
worker.actuators.add_function("flush", print)
print(refused, "flush" in worker.operations.offered(), worker.operations.do(command(Flush(2))))
try:
    worker.operations.do(command(Flush(-1)))
except Exception as error:
    print(repr(error))
"""


@pytest.mark.integration
def test_a_part_of_anyones_package_is_found_and_done(tmp_path):
    assert run(tmp_path, USE).stdout.splitlines() == [
        "2",
        "need a function to flush: call loom.on('flush', flush) in the script True "
        "flushed 2 at step -1",
        "OperationError('need lines >= 0, was -1')",
    ]


OFFERED = """
from tests.threadlet.standbys import worker_with
for _ in range(2):
    print(*sorted(worker_with(standby=False).operations.offered()))
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("module", "value", "line"),
    [
        (PACKAGE + "1 / 0", "PARTS", "foreign:PARTS: ZeroDivisionError: division by zero"),
        (PACKAGE + "raise SystemExit(3)", "PARTS", "foreign:PARTS: SystemExit: 3"),
        (
            PACKAGE + "NO = [Flush]",
            "NO",
            "foreign:NO: TypeError: need a TrainerPart or a SidecarPa",
        ),
        (
            PACKAGE.replace('tag="flush"', 'tag="flush all"'),
            "PARTS",
            "foreign:PARTS: ValueError: need letters, digits",
        ),
    ],
)
def test_a_broken_part_is_logged_once_and_not_offered(tmp_path, module, value, line):
    done = run(tmp_path, OFFERED, module, value)
    assert done.stdout.splitlines() == ["drain dump pause resume write_log"] * 2
    [warning] = [text for text in done.stderr.splitlines() if "flush" in text]
    assert f"trainer capability flush is left out: {line}" in warning


@pytest.mark.integration
@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("sys.exit(3)", "SystemExit: 3"),
        ("[]", "flush: need a text from refusal, was list"),
    ],
)
def test_a_part_whose_questions_fail_neither_ends_the_link_nor_training(tmp_path, what, line):
    methods = "FlushPart.is_offered = FlushPart.is_at_once = FlushPart.refusal"
    odd = f"import sys\n{methods} = lambda *_: {what}"
    script = """
from tests.threadlet.standbys import command, worker_with
from foreign import Flush
worker = worker_with(standby=False)
print("flush" in worker.operations.offered(), worker.operations.is_at_once(command(Flush())))
print(worker.operations.refusal(command(Flush())))
"""
    assert run(tmp_path, script, PACKAGE + odd).stdout.splitlines() == ["False False", line]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("what", "ack"), [("sys.exit(3)", "failed SystemExit: 3"), ("{'a': 1}", "applied {'a': 1}")]
)
def test_a_part_that_exits_or_returns_no_text_does_not_end_training(tmp_path, what, ack):
    script = """
from msgspec.structs import replace
from tests.threadlet.standbys import command, worker_with
from foreign import Flush
worker = worker_with(standby=False)
worker.actuators.add_function("flush", print)
worker.send = lambda sent: print(getattr(sent, "status", ""), getattr(sent, "detail", ""))
worker.deliver(replace(command(Flush()), incarnation=worker.identity.incarnation))
worker.execute_pending()
"""
    odd = f"import sys\nFlushPart.do = lambda *_: {what}"
    assert run(tmp_path, script, PACKAGE + odd).stdout.splitlines()[-1] == ack


@pytest.mark.integration
def test_a_package_with_damaged_entry_points_is_left_out_with_one_warning(tmp_path):
    damaged = tmp_path / "half-1.0.dist-info"
    damaged.mkdir()
    (damaged / "METADATA").write_text("Metadata-Version: 2.1\nName: half\nVersion: 1.0\n")
    (damaged / "entry_points.txt").write_text("[torchloom.trainer_capabilities]\nodd = a:B\nod")
    done = run(tmp_path, USE)
    assert "flushed 2 at step -1" in done.stdout
    [warning] = [text for text in done.stderr.splitlines() if "WARNING" in text]
    assert "entry points of half cannot be read" in warning


@pytest.fixture
def with_package(tmp_path):
    """Return the environment of a trainer beside which the package is installed."""
    site = tmp_path / "site"
    site.mkdir()
    points = {
        "torchloom.capabilities": {"flush": "foreign"},
        "torchloom.trainer_capabilities": {"flush": "foreign:PARTS"},
    }
    install(site, "foreign", PACKAGE, points)
    return {"PYTHONPATH": str(site)}


async def ask(weaver, hello, command_id, operation):
    """Send an operation that is not installed in this process, and wait for the final ack."""
    plain = msgspec.to_builtins(command(Resume())) | {"do": operation, "id": command_id}
    plain |= {"worker": hello.worker, "incarnation": hello.incarnation}
    await weaver.send_once(hello, plain)
    return await weaver.final(command_id)


@pytest.mark.integration
async def test_both_processes_do_what_a_package_brings(weaver, start_trainer, with_package):
    trainer = start_trainer(**with_package)
    hello = await weaver.admit()
    assert "where" in (await weaver.event(Hello)).actuators
    await trainer.goes_on()
    ack = await ask(weaver, hello, "c1", {"verb": "flush"})
    assert (ack.status, ack.detail) == (
        "rejected",
        "need a function to flush: call loom.on('flush', flush) in the script",
    )
    for _ in range(2):
        ack = await ask(weaver, hello, "c2", {"verb": "where"})
        assert (ack.status, ack.detail) == ("applied", "beside g0-0")
    await trainer.goes_on()


@pytest.mark.integration
async def test_a_broken_package_is_one_line_of_a_trainer_and_its_sidecar(
    weaver, start_trainer, with_package, tmp_path
):
    (tmp_path / "site" / "foreign.py").write_text("1 / 0")
    trainer = start_trainer(**with_package)
    await weaver.admit()
    await trainer.goes_on()
    assert trainer.errors.count("trainer capability flush is left out") == 1


@pytest.mark.integration
async def test_an_operation_that_no_package_has_is_refused_by_name(weaver, start_trainer):
    trainer = start_trainer()
    hello = await weaver.admit()
    await trainer.goes_on()
    flush = {"verb": "flush"}
    for number, operation in enumerate(
        (flush, {"verb": "fenced_change", "number": 1, "do": flush})
    ):
        ack = await ask(weaver, hello, f"c{number}", operation)
        assert ack.status == "rejected"
        assert "unknown operation 'flush': no installed capability has it" in ack.detail
    await trainer.goes_on()
    assert "dropped" not in trainer.errors
