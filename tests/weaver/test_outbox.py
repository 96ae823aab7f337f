"""State before commands, one value a key, and no attempt without a pause after a failed one."""

import asyncio
import contextlib

import pytest

from tests.kernel.runs import START_NS
from tests.waiting import News, soon
from torchloom_core.floor.clock import SECOND_NS, ManualClock
from torchloom_core.floor.errors import BrokerError, RefusedByBrokerError
from torchloom_core.floor.first_done import end_all
from torchloom_core.live.weaver import outbox as outbox_module
from torchloom_core.live.weaver.courier import Courier
from torchloom_core.live.weaver.outbox import AT_KEY, Outbox
from torchloom_core.wire.commands import Command
from torchloom_core.wire.decisions import Issue, KnobDesired, Notice, Withdrawal
from torchloom_core.wire.operations import Pause
from torchloom_core.wire.plans import Granted


class Bus(News):
    """Logs the outbox's calls, and fails as often as configured."""

    def __init__(self):
        self.done = []
        self.published = []
        self.failures = []
        self.attempts = 0
        super().__init__()

    async def _do(self, what):
        self.attempts += 1
        self._news.set()
        if self.failures:
            raise self.failures.pop(0)
        self.done.append(what)

    async def store(self, entries):
        await self._do(("store", dict(entries)))

    async def connected(self):
        pass

    async def send(self, commands):
        await self._do(("send", [command.id for command in commands]))

    async def roll_call(self, epoch, workers):
        await self._do(("roll", epoch, list(workers)))

    def publish(self, kind, message):
        self.published.append(kind)


@pytest.fixture
def bus():
    return Bus()


@pytest.fixture
def clock():
    return ManualClock(START_NS)


@pytest.fixture
def withheld():
    return []


@pytest.fixture
def courier(bus, clock):
    return Courier(bus, clock)


@pytest.fixture
def outbox(bus, clock, courier, withheld):
    return Outbox(bus, clock, 7, courier, withheld.extend)


@pytest.fixture
def pause(monkeypatch):
    """Return a function that sets how long the outbox pauses after a failure."""
    return lambda seconds: monkeypatch.setattr(outbox_module, "_PAUSE_S", seconds)


@contextlib.asynccontextmanager
async def running(outbox):
    task = asyncio.create_task(outbox.run())
    try:
        yield task
    finally:
        await end_all(task)


def raising(error):
    async def fail(*_):
        raise error

    return fail


def issue(number, after_s=60):
    return Issue(
        command=Command(
            id=f"c{number}",
            run="run",
            worker=f"w{number}",
            incarnation=1,
            epoch=7,
            issued_ns=START_NS,
            deadline_ns=START_NS + after_s * SECOND_NS,
            do=Pause(),
        )
    )


def grant(cost):
    return Granted(verdict="p1", target="run", action="pause", ts_ns=0, cost_gpu_s=cost)


async def test_the_state_is_stored_before_the_commands_of_its_moment(outbox, bus):
    outbox.post([issue(1), issue(2)], {"grant.p1": grant(1.0), "plan.p0": None}, seq=5)
    async with running(outbox):
        await outbox.drained()
    (what, entries), sent = bus.done
    assert (what, list(entries)) == ("store", ["grant.1", "plan.p0", AT_KEY])
    assert entries["plan.p0"] is None
    assert entries[AT_KEY] == b'{"seq":5}'
    assert sent == ("send", ["c1", "c2"])
    assert bus.published == ["issue", "issue"]


async def test_a_command_posted_while_something_is_stored_waits_for_its_own_state(
    outbox, bus, monkeypatch
):
    gate = asyncio.Event()
    store = bus.store

    async def slowly(entries):
        await store(entries)
        await gate.wait()

    monkeypatch.setattr(bus, "store", slowly)
    outbox.post([issue(1)], {"flight.c1": grant(1.0)}, seq=1)
    async with running(outbox):
        await bus.until(lambda: bus.done)
        outbox.post([issue(2)], {"flight.c2": grant(2.0)}, seq=2)
        gate.set()
        await outbox.drained()
    stored, sent = (
        [(place, what) for place, (kind, what) in enumerate(bus.done) if kind == wanted]
        for wanted in ("store", "send")
    )
    (_, first), (second_at, second) = stored
    assert [list(first), list(second)] == [["flight.1", AT_KEY], ["flight.2", AT_KEY]]
    assert [command for _, commands in sent for command in commands] == ["c1", "c2"]
    assert all(place > second_at for place, commands in sent if "c2" in commands)


async def test_state_is_stored_while_more_is_published_than_at_once(outbox, bus, monkeypatch):
    """Reports are acknowledged once their state is stored; publications can wait."""
    gate, publish = asyncio.Event(), bus.publish

    def publish_and_post(kind, output):
        publish(kind, output)
        if len(bus.published) < 10_000 and not gate.is_set():
            outbox.post([issue(1)], {"grant.p1": grant(float(len(bus.published)))}, seq=2)

    monkeypatch.setattr(bus, "publish", publish_and_post)
    outbox.post([issue(1)], {"grant.p1": grant(0.0)}, seq=1)
    async with running(outbox):
        await soon(outbox.stored(2))
        assert len(bus.published) < 10_000
        gate.set()
        await outbox.drained()


async def test_while_the_broker_is_away_only_the_newest_value_of_a_key_waits(outbox, bus, pause):
    pause(0.01)
    bus.failures = [BrokerError("away")] * 3
    outbox.post([KnobDesired(knob="lr", value=0.1)], {"grant.p1": grant(1.0)}, seq=1)
    async with running(outbox):
        await bus.until(lambda: bus.attempts == 2)
        for seq in range(2, 200):
            outbox.post([], {"grant.p1": grant(float(seq))}, seq=seq)
        await outbox.drained()
    stores = [entries for what, entries in bus.done if what == "store"]
    assert len(stores) == 1
    assert b'"cost_gpu_s":199.0' in stores[0]["grant.1"]
    assert stores[0][AT_KEY] == b'{"seq":199}'


async def test_a_broker_that_fails_at_once_is_retried_after_a_delay(outbox, bus, pause):
    pause(3600.0)
    bus.failures = [BrokerError("away")] * 1_000
    outbox.post([issue(1)], {"grant.p1": grant(1.0)}, seq=1)
    async with running(outbox):
        await bus.until(lambda: bus.attempts)
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert bus.attempts == 1


@pytest.mark.parametrize("call", ["store", "send"])
async def test_what_the_broker_refuses_ends_the_outbox(outbox, bus, monkeypatch, call):
    monkeypatch.setattr(bus, call, raising(RefusedByBrokerError("too large")))
    outbox.post([issue(1)], {}, seq=1)
    async with running(outbox) as task:
        with pytest.raises(RefusedByBrokerError, match="too large"):
            await soon(task)


async def test_a_command_that_passes_its_deadline_waiting_is_sent_no_more(
    outbox, bus, clock, pause
):
    pause(0.01)
    bus.failures = [BrokerError("away")]
    outbox.post([issue(1, after_s=1), issue(2)], {"grant.p1": grant(1.0)}, seq=1)
    clock.advance_s(2)
    async with running(outbox):
        await outbox.drained()
    assert bus.done[1:] == [("send", ["c2"])]


def stranger(worker):
    return Notice(kind="stranger", text="", worker=worker)


async def test_a_worker_without_a_hello_gets_a_roll_call_but_not_at_every_tick(outbox, bus, clock):
    async with running(outbox):
        outbox.call(["g0-0", "g1-0"])
        await outbox.drained()
        for _ in range(8):
            clock.advance_s(0.5)
            outbox.call(["g2-0"])
            await outbox.drained()
        clock.advance_s(1.0)
        outbox.call(["g2-0"])
        await outbox.drained()
    calls = [done for done in bus.done if done[0] == "roll"]
    assert calls == [("roll", 7, ["g0-0", "g1-0"]), ("roll", 7, ["g2-0"])]


async def test_a_roll_call_that_fails_is_one_line_in_the_log_and_delays_nothing(
    outbox, bus, monkeypatch, caplog
):
    monkeypatch.setattr(bus, "roll_call", raising(RefusedByBrokerError("not now")))
    outbox.post([issue(1)], {}, seq=1)
    outbox.call(["x-0"])
    async with running(outbox):
        await outbox.drained()
    assert bus.done[-1] == ("send", ["c1"])
    assert [record.getMessage() for record in caplog.records] == ["not now"]


async def test_a_command_withdrawn_before_sending_is_reported_as_withheld(
    outbox, bus, withheld, monkeypatch
):
    gate = asyncio.Event()
    store = bus.store

    async def slowly(entries):
        await store(entries)
        await gate.wait()

    monkeypatch.setattr(bus, "store", slowly)
    outbox.post([issue("7.1"), issue("7.2"), issue("7.3"), issue("6.3")], {}, seq=1)
    # The Weaver of epoch 6 may have sent its own.
    taken_back = [Withdrawal(command=f"c{n}", worker=f"w{n}") for n in ("7.2", "6.3")]
    outbox.post(taken_back, {}, seq=2)
    async with running(outbox):
        await bus.until(lambda: bus.done)
        outbox.post([Withdrawal(command="c7.3", worker="w7.3")], {}, seq=3)
        gate.set()
        await outbox.drained()
        outbox.post([Withdrawal(command="c7.1", worker="w7.1")], {}, seq=4)
        await outbox.drained()
    assert [done for done in bus.done if done[0] != "store"] == [("send", ["c7.1"])]
    assert withheld == ["c7.2", "c7.3"]


async def test_all_is_on_record_before_it_is_stored_and_published(bus, clock, pause, monkeypatch):
    pause(0.01)
    bus.failures = [BrokerError("away")]
    posted, recorded, at = [], [], []
    store = bus.store

    async def note(entries):
        at.append(len(posted) - len(recorded))
        await store(entries)

    monkeypatch.setattr(bus, "store", note)
    monkeypatch.setattr(bus, "publish", lambda *_: at.append(len(posted) - len(recorded)))
    record = lambda: recorded.extend(posted[len(recorded) :])  # noqa: E731
    outbox = Outbox(bus, clock, 7, Courier(bus, clock), print, record)

    def post(number):
        posted.append(number)
        outbox.post([issue(number)], {}, seq=number)

    post(1)
    async with running(outbox):
        await bus.until(lambda: bus.attempts)
        post(2)
        await outbox.drained()
    assert at == 4 * [0]


async def test_only_the_newest_unpublished_messages_wait(bus, clock, monkeypatch):
    monkeypatch.setattr(outbox_module, "_MOST_UNPUBLISHED", 3)
    outbox = Outbox(bus, clock, 7, Courier(bus, clock), print)
    outbox.post([issue(1), issue(2)], {}, seq=1)
    outbox.post([Withdrawal(command="c1", worker="w1"), *[stranger("x-0")] * 2], {}, seq=2)
    async with running(outbox):
        await outbox.drained()
    assert bus.published == ["withdrawal", "notice", "notice"]


async def test_an_input_without_outputs_is_neither_stored_nor_awaited(outbox, bus):
    outbox.post([], {}, seq=9)
    async with running(outbox):
        await soon(outbox.drained())
        outbox.post([issue(1)], {}, seq=10)
        await outbox.drained()
    assert bus.done == [("store", {AT_KEY: b'{"seq":10}'}), ("send", ["c1"])]


@pytest.mark.parametrize("failures", [[], [BrokerError("away")]])
async def test_the_position_of_the_state_is_stored_after_all_of_it(outbox, bus, pause, failures):
    pause(0.01)
    bus.failures = list(failures)
    outbox.post([], {"grant.p1": grant(1.0)}, seq=1)
    async with running(outbox):
        if failures:
            await bus.until(lambda: bus.attempts)
        outbox.post([], {"grant.p2": grant(2.0)}, seq=2)
        await outbox.drained()
    (_, entries), *_ = bus.done
    assert list(entries) == ["grant.1", "grant.2", AT_KEY]


async def test_outputs_posted_while_others_are_sent_are_awaited_too(outbox, bus, monkeypatch):
    send, store = bus.send, bus.store

    async def send_and_post(commands):
        await send(commands)
        outbox.post([stranger("x-0")], {}, seq=2)
        outbox.call(["x-0"])

    async def store_in_a_while(entries):
        for _ in range(9):
            await asyncio.sleep(0)
        await store(entries)

    monkeypatch.setattr(bus, "send", send_and_post)
    monkeypatch.setattr(bus, "store", store_in_a_while)
    outbox.post([issue(1)], {}, seq=1)
    async with running(outbox):
        await outbox.drained()
    assert bus.done[-2:] == [("store", {AT_KEY: b'{"seq":2}'}), ("roll", 7, ["x-0"])]


async def test_while_many_messages_are_published_other_tasks_run(outbox, bus, monkeypatch):
    monkeypatch.setattr(outbox_module, "_PUBLISHED_AT_ONCE", 2)

    async def others():
        while True:
            bus.published.append("turn")
            await asyncio.sleep(0)

    outbox.post([stranger("x-0")] * 6, {}, seq=1)
    async with running(outbox):
        task = asyncio.create_task(others())
        await outbox.drained()
        task.cancel()
    between = "".join("." if kind == "turn" else "n" for kind in bus.published).strip(".")
    assert max(map(len, between.split("."))) == 2
