"""``loom.step`` from any thread, and the state after the loom is closed."""

import subprocess
import sys
import threading

import msgspec
import pytest

from tests.deadlines import DEADLINE_S
from tests.waiting import until
from torchloom_core.wire.commands import Command
from torchloom_core.wire.messages import JoinFile
from torchloom_core.wire.operations import Drain, Operation, Pause, Resume, SetKnob
from torchloom_threadlet import attach

SECOND_NS = 10**9


@pytest.fixture
def loom(tmp_path, monkeypatch):
    """A loom without a Weaver, which gets its commands from the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORCHLOOM_JOIN", raising=False)
    return attach()


def deliver(loom, operation: Operation, command_id="c1", cause=""):
    worker = loom._worker
    worker.deliver(
        Command(
            id=command_id,
            run="",
            worker=loom.worker,
            incarnation=worker.identity.incarnation,
            epoch=1,
            issued_ns=0,
            deadline_ns=2**63 - 1,
            do=operation,
            cause=cause,
        )
    )


def test_a_restored_desired_value_is_in_the_trainers_own_log(loom, caplog):
    rate = {"lr": 0.001}
    loom.knob("lr", lambda: rate["lr"], lambda value: rate.update(lr=value))
    deliver(loom, SetKnob(knob="lr", value=0.002), cause="p1.1")
    assert loom.step()
    assert caplog.messages == []
    deliver(loom, SetKnob(knob="lr", value=0.0009), "c2", cause="reconcile")
    assert loom.step()
    assert rate == {"lr": 0.0009}
    assert caplog.messages == ["g0-0: lr is restored to its desired value 0.0009"]


def warnings(caplog):
    return [message for message in caplog.messages if "several threads" in message]


def test_steps_of_several_threads_are_all_counted_with_one_warning(loom, caplog):
    def step(times):
        for _ in range(times):
            loom.step(loss=1.0)

    def in_threads(count, times):
        threads = [threading.Thread(target=step, args=[times]) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    step(1)
    in_threads(1, 1)  # the lock begins with the second thread: before, two may count as one
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads(4, 1000)
    finally:
        sys.setswitchinterval(before)
    serials = [serial for serial, _, _ in loom._worker.samples.waiting]
    assert serials == list(range(1, 4003))
    assert loom._worker.step == 4001
    assert len(warnings(caplog)) == 1


def test_one_thread_is_paused_and_the_others_continue(loom, caplog):
    assert loom.step()
    deliver(loom, Pause())
    paused = threading.Thread(target=loom.step)
    paused.start()
    until(lambda: loom.state == "paused")
    assert all(loom.step() for _ in range(100))
    deliver(loom, Resume(), "c2")
    until(lambda: loom.step() and not paused.is_alive())
    assert loom.state == "training"
    assert len(warnings(caplog)) == 1


def test_step_returns_false_once_in_every_thread_and_then_ends_it(loom, caplog):
    deliver(loom, Drain())
    assert not loom.step()
    seen = []
    other = threading.Thread(target=lambda: seen.append(loom.step()))
    other.start()
    other.join()
    assert seen == [False]
    with pytest.raises(SystemExit) as end:
        loom.step()
    assert end.value.code == 0
    assert "g0-0 was drained but its loop continues: exiting with status 0" in caplog.messages


@pytest.mark.integration
def test_a_closed_loom_restores_the_exception_hook(tmp_path):
    path = tmp_path / "join.json"
    path.write_bytes(msgspec.json.encode(JoinFile(url="nats://127.0.0.1:9", run="run")))
    script = (
        "import sys, torchloom_threadlet\n"
        "before = sys.excepthook\n"
        f"loom = torchloom_threadlet.attach({str(path)!r})\n"
        "assert sys.excepthook is not before\n"
        "loom.close()\n"
        "assert sys.excepthook is before\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=DEADLINE_S)
