"""An effector gets its events in order, and whatever it does holds up and harms nobody."""

import asyncio
import contextlib
import threading

import pytest

from tests.waiting import eventually, soon
from torchloom_core.floor.errors import PluginError
from torchloom_core.floor.first_done import end_all
from torchloom_core.interface.effector import ActiveEffector
from torchloom_core.live.weaver import effectors as effectors_module
from torchloom_core.live.weaver.effectors import EffectorOutbox
from torchloom_core.plugin import CordonOver, Notice, Subscription


class Recorder:
    """Stores what it gets, and raises ``failures`` first."""

    subscriptions = (Subscription(CordonOver), Subscription(Notice))

    def __init__(self):
        self.got = []
        self.failures = []

    async def send(self, delivery):
        self.got.append(delivery)
        if self.failures:
            raise self.failures.pop(0)
        return f"{delivery.event.node} done"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(effectors_module, "_FIRST_PAUSE_S", 0.01)


@pytest.fixture
def recorder():
    return Recorder()


class Outbox(EffectorOutbox):
    """An outbox with its results as tuples; the state is stored once ``is_stored`` is set."""

    def __init__(self, effector, mode="act"):
        self.results = []
        self.is_stored = asyncio.Event()
        self.is_stored.set()
        super().__init__(
            ActiveEffector("it", effector, mode), "demo", 3, self._wait, self._add_result
        )

    async def _wait(self, seq):
        await self.is_stored.wait()

    def _add_result(self, status):
        self.results.append((status.delivery, status.result, status.detail))

    @contextlib.asynccontextmanager
    async def running(self):
        task = asyncio.create_task(self.run())
        try:
            yield
        finally:
            await end_all(task)

    async def deliver(self, *nodes):
        for seq, node in enumerate(nodes, start=1):
            self.take(CordonOver(node=node), seq, 2, 10 + seq)
        async with self.running():
            await soon(self.drained())
        return self.results


async def test_events_arrive_in_order_with_their_place_in_the_record(recorder):
    assert await Outbox(recorder).deliver("n1", "n2") == [
        ("e3.1.2", "delivered", "n1 done"),
        ("e3.2.2", "delivered", "n2 done"),
    ]
    first, second = recorder.got
    assert (first.id, first.run, first.ts_ns, first.event.node) == ("e3.1.2", "demo", 11, "n1")
    assert second.event.node == "n2"


async def test_other_events_and_notices_that_would_come_without_end_are_not_sent(recorder):
    recorder.subscriptions = (Subscription(Notice),)
    outbox = Outbox(recorder)
    for kind in ("effector", "stranger"):
        outbox.take(Notice(kind=kind, text=""), 1, 1, 0)
    assert await outbox.deliver("n1") == []


async def test_nothing_is_sent_before_the_state_is_stored(recorder):
    outbox = Outbox(recorder)
    outbox.is_stored.clear()
    outbox.take(CordonOver(node="n1"), 1, 1, 0)
    async with outbox.running():
        for _ in range(100):
            await asyncio.sleep(0)
        assert not recorder.got
        outbox.is_stored.set()
        await soon(outbox.drained())
    assert recorder.got


async def test_in_dry_run_the_record_says_what_would_be_sent(recorder):
    assert await Outbox(recorder, "dry_run").deliver("n1") == [
        ("e3.1.2", "dry_run", "cordon_over: node n1 is uncordoned: its cordon has expired")
    ]
    assert not recorder.got


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("down"), "OSError: down"),
        (SystemExit(3), "RuntimeError: SystemExit: 3"),
        (asyncio.CancelledError(), "RuntimeError: CancelledError: no message"),
    ],
)
async def test_a_failed_event_is_sent_again_before_the_next(recorder, error, text):
    recorder.failures = [error, error]
    assert await Outbox(recorder).deliver("n1", "n2") == [
        ("e3.1.2", "retrying", text),
        ("e3.1.2", "delivered", "n1 done"),
        ("e3.2.2", "delivered", "n2 done"),
    ]
    assert [delivery.id for delivery in recorder.got] == ["e3.1.2"] * 3 + ["e3.2.2"]


async def test_an_event_that_the_effector_refuses_is_given_up_at_once(recorder):
    recorder.failures = [PluginError("no such node")]
    assert await Outbox(recorder).deliver("n1", "n2") == [
        ("e3.1.2", "given_up", "PluginError: no such node"),
        ("e3.2.2", "delivered", "n2 done"),
    ]


async def test_an_event_is_given_up_in_the_end(recorder, monkeypatch):
    monkeypatch.setattr(effectors_module, "_PATIENCE_S", 0.0)
    recorder.failures = [OSError("down")]
    assert await Outbox(recorder).deliver("n1") == [("e3.1.2", "given_up", "OSError: down")]


async def test_a_full_queue_drops_the_oldest_event(recorder, monkeypatch):
    monkeypatch.setattr(effectors_module, "_MOST_WAITING", 2)
    results = await Outbox(recorder).deliver("n1", "n2", "n3")
    assert results[0] == ("e3.1.2", "dropped", "more than 2 events wait")
    assert [delivery.event.node for delivery in recorder.got] == ["n2", "n3"]


async def test_what_waits_when_the_weaver_ends_is_recorded_as_dropped(recorder, monkeypatch):
    monkeypatch.setattr(effectors_module, "_FIRST_PAUSE_S", 3600.0)
    monkeypatch.setattr(effectors_module, "_PATIENCE_S", 7200.0)
    recorder.failures = [OSError("down")]
    outbox = Outbox(recorder)
    for seq in (1, 2):
        outbox.take(CordonOver(node=f"n{seq}"), seq, 1, 0)
    async with outbox.running():
        await eventually(lambda: outbox.results)
    assert outbox.results == [
        ("e3.1.1", "retrying", "OSError: down"),
        ("e3.1.1", "dropped", "the Weaver ended"),
        ("e3.2.1", "dropped", "the Weaver ended"),
    ]


async def test_an_effector_that_hangs_holds_up_nobody_and_is_called_again_once_it_returns(
    recorder, monkeypatch
):
    monkeypatch.setattr(effectors_module, "_ATTEMPT_S", 0.05)
    monkeypatch.setattr(effectors_module, "_THREAD_GRACE_S", 0.0)
    gate, calls = threading.Event(), []
    send = recorder.send

    async def hang_at_first(delivery):
        calls.append(delivery.id)
        if len(calls) == 1:
            gate.wait()  # blocks the thread, not only its loop
        return await send(delivery)

    recorder.send = hang_at_first
    outbox = Outbox(recorder)
    outbox.take(CordonOver(node="n1"), 1, 1, 0)
    async with outbox.running():
        await eventually(lambda: outbox.results)  # the loop of the Weaver turns
        gate.set()
        await soon(outbox.drained())
    assert outbox.results == [
        ("e3.1.1", "retrying", "TimeoutError: took more than 0.05 s"),
        ("e3.1.1", "delivered", "n1 done"),
    ]


async def test_an_attempt_that_waits_for_too_long_is_cancelled(recorder, monkeypatch):
    monkeypatch.setattr(effectors_module, "_ATTEMPT_S", 0.05)
    send, calls = recorder.send, []

    async def wait_at_first(delivery):
        calls.append(delivery.id)
        if len(calls) == 1:
            await asyncio.sleep(3600)
        return await send(delivery)

    recorder.send = wait_at_first
    assert await Outbox(recorder).deliver("n1") == [
        ("e3.1.2", "retrying", "TimeoutError: took more than 0.05 s"),
        ("e3.1.2", "delivered", "n1 done"),
    ]
