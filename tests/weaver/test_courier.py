"""A command is sent until its ack, over a wire that loses, repeats, delays and reorders."""

import asyncio
import contextlib

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.strategies import data, integers, sampled_from

from tests.kernel.runs import START_NS
from tests.waiting import News
from torchloom_core.floor.clock import SECOND_NS, ManualClock
from torchloom_core.floor.errors import BrokerError, RefusedByBrokerError
from torchloom_core.floor.first_done import end_all
from torchloom_core.live.weaver import courier as courier_module
from torchloom_core.live.weaver.courier import Courier
from torchloom_core.wire.commands import FINAL_STATUSES, Command
from torchloom_core.wire.operations import Pause
from torchloom_threadlet.trainer.command_inbox import CommandInbox

WORKER = "g0-0"


def command(name="c1", epoch=1, after_s=60, worker=WORKER):
    return Command(
        id=name,
        run="run",
        worker=worker,
        incarnation=1,
        epoch=epoch,
        issued_ns=START_NS,
        deadline_ns=START_NS + after_s * SECOND_NS,
        do=Pause(),
    )


class Bus(News):
    def __init__(self):
        self.sent, self.failures = [], []
        self.up = asyncio.Event()
        self.up.set()
        super().__init__()

    async def connected(self):
        await self.up.wait()

    async def send(self, commands):
        self.sent += [command.id for command in commands]
        self._news.set()
        if self.failures:
            raise self.failures.pop(0)


@pytest.fixture
def clock():
    return ManualClock(START_NS)


@pytest.fixture
def bus():
    return Bus()


@pytest.fixture
def courier(bus, clock):
    return Courier(bus, clock)


@pytest.fixture
def sent_after(courier, clock):
    """Return a function that passes seconds and returns what is sent at their end."""

    def sent_after(seconds):
        clock.advance_s(seconds)
        return [command.id for command in courier.due()]

    return sent_after


@contextlib.asynccontextmanager
async def running(courier):
    task = asyncio.create_task(courier.run())
    try:
        yield task
    finally:
        await end_all(task)


async def test_a_command_is_sent_again_ever_more_rarely(courier, sent_after):
    courier.hold(command(after_s=3600))
    assert sent_after(0) == []
    courier.send(["c1"])
    for wait_s in (0, 1, 2, 5, 15, 60, 60):
        assert sent_after(wait_s - 0.1) == []
        assert sent_after(0.1) == ["c1"]


async def test_what_a_worker_has_waits_for_its_long_step_and_what_ended_is_forgotten(
    courier, sent_after
):
    for name in ("c1", "c2"):
        courier.hold(command(name, after_s=3600))
    courier.send(["c1", "c2"])
    assert sent_after(0) == ["c1", "c2"]
    courier.note("c1", "delivered")
    courier.note("c2", "applied")
    assert sent_after(59) == []
    assert sent_after(1) == ["c1"]
    courier.note("c1", "rejected")
    assert not courier._open
    assert not courier._of


async def test_a_hello_repeats_all_that_is_open_for_its_process_but_not_at_each_of_many(
    courier, sent_after
):
    courier.hold(command("c1"))
    courier.hold(command("other", worker="g1-0"))
    courier.send(["c1", "other"])
    courier.hold(command("held"))
    sent_after(0)
    courier.note("c1", "accepted")
    courier.note("other", "accepted")
    for _ in range(100):
        courier.reached(WORKER, 1)
        courier.reached(WORKER, 2)
        assert sent_after(0.005) == []
    assert sent_after(0.5) == ["c1"]
    assert sent_after(0.9) == []


async def test_past_its_deadline_a_command_is_sent_after_a_hello_only(courier, sent_after):
    courier.hold(command(after_s=10))
    courier.send(["c1"])
    assert [sent_after(wait_s) for wait_s in (0, 11, 60)] == [["c1"], [], []]
    courier.reached(WORKER, 1)
    assert sent_after(0) == ["c1"]
    assert [sent_after(wait_s) for wait_s in (60, 60)] == [["c1"], []]


async def test_a_withdrawn_command_is_sent_no_more(courier, sent_after):
    for name in ("c1", "c2", "c3"):
        courier.hold(command(name))
    courier.send(["c1", "c2"])
    assert courier.withdraw("c2")
    assert sent_after(0) == ["c1"]
    assert not courier.withdraw("c1")
    assert not courier.withdraw("c1")
    assert courier.withdraw("c3")
    courier.send(["c3"])
    courier.reached(WORKER, 1)
    assert sent_after(60) == []


async def test_many_commands_are_sent_in_batches_in_order(courier, bus, monkeypatch):
    monkeypatch.setattr(courier_module, "_AT_ONCE", 2)
    names = [f"c{number}" for number in range(11)]
    for name in names:
        courier.hold(command(name))
    courier.send(names)
    async with running(courier):
        await courier.drained()
    assert bus.sent == names


async def test_nothing_is_taken_as_sent_while_the_broker_is_away(courier, bus):
    bus.up.clear()
    courier.hold(command())
    courier.send(["c1"])
    async with running(courier):
        await asyncio.sleep(0)
        assert courier.withdraw("c1")


async def test_a_broker_that_fails_is_asked_again_after_a_pause(courier, bus, clock, caplog):
    bus.failures = [BrokerError("away")] * 1_000
    courier.hold(command())
    courier.send(["c1"])
    async with running(courier):
        await bus.until(lambda: bus.sent)
        clock.advance_s(1)
        for _ in range(1_000):
            await asyncio.sleep(0)
    assert bus.sent == ["c1"]
    assert [record.getMessage() for record in caplog.records] == [
        "1 commands are sent again later, the first is c1 to g0-0: away"
    ]


async def test_what_the_broker_refuses_ends_the_courier(courier, bus):
    bus.failures = [RefusedByBrokerError("too large")]
    courier.hold(command())
    courier.send(["c1"])
    async with running(courier) as task:
        with pytest.raises(RefusedByBrokerError, match="too large"):
            await asyncio.wait_for(task, 10)


async def test_a_workers_clock_that_is_ahead_shifts_its_commands(bus, clock):
    sent = []

    async def send(commands):
        sent.extend(commands)

    bus.send = send
    late = command(after_s=90)
    courier = Courier(bus, clock, lambda command: late)
    courier.hold(command())
    courier.send(["c1"])
    async with running(courier):
        await courier.drained()
    assert sent == [late]


class LossyWire(RuleBasedStateMachine):
    """Weaver, wire, sidecar and trainer; each may die but the trainer, whose inbox decides."""

    @initialize()
    def begin(self):
        self.clock = ManualClock(START_NS)
        self.inbox = CommandInbox(incarnation=1)
        self.epoch = 0
        self.issued = 0
        self.flights, self.ends, self.effects = {}, {}, []
        self.to_worker, self.to_weaver, self.trainer = [], [], []
        self.take_over()

    @rule()
    def take_over(self):
        """The Weaver is killed; its successor sends the flights in its bucket again."""
        self.epoch += 1
        self.courier = Courier(None, self.clock)
        for flight in self.flights.values():
            self.courier.hold(msgspec.structs.replace(flight, epoch=self.epoch))
        self.courier.send(self.flights)
        self.say_hello()

    @rule()
    def issue(self):
        self.issued += 1
        now_s = (self.clock.now_ns() - START_NS) // SECOND_NS
        one = command(f"c{self.issued}", self.epoch, after_s=now_s + 600)
        self.flights[one.id] = one
        self.courier.hold(one)
        self.courier.send([one.id])

    @rule(seconds=integers(0, 90))
    def send(self, seconds):
        self.clock.advance_s(seconds)
        self.to_worker += self.courier.due()

    @precondition(lambda self: self.to_worker)
    @rule(pick=data(), fate=sampled_from(["arrives", "is lost", "arrives and stays"]))
    def deliver(self, pick, fate):
        """Any of the commands on the way arrives, and may arrive again."""
        one = pick.draw(sampled_from(self.to_worker))
        if fate != "arrives and stays":
            self.to_worker.remove(one)
        if fate != "is lost":
            ack, begins = self.inbox.receive(one, self.clock.now_ns())
            self.to_weaver.append(ack)
            if begins:
                self.trainer.append(one)

    @precondition(lambda self: self.trainer)
    @rule()
    def step(self):
        """The trainer carries out all at its step boundary; final acks are stored until read."""
        for one in self.trainer:
            if (late := self.inbox.begin(one.id, self.clock.now_ns())) is None:
                self.effects.append(one.id)
                late = self.inbox.settle(one.id, "applied", self.clock.now_ns())
            self.to_weaver.append(late)
        self.trainer.clear()

    @rule()
    def read_acks(self):
        for ack in self.to_weaver:
            flight = self.flights.get(ack.command)
            if flight is None or (ack.status == "rejected" and ack.epoch < self.epoch):
                continue
            self.courier.note(ack.command, ack.status)
            if ack.status in FINAL_STATUSES:
                del self.flights[ack.command]
                self.ends.setdefault(ack.command, []).append(ack.status)
        self.to_weaver.clear()

    @rule()
    def say_hello(self):
        """The sidecar is restarted, or the broker: what was on the way is gone."""
        self.to_worker.clear()
        self.courier.reached(WORKER, 1)

    @invariant()
    def every_effect_is_the_only_one(self):
        assert len(self.effects) == len(set(self.effects))
        assert all(len(ends) == 1 for ends in self.ends.values())

    def teardown(self):
        """Once the wire loses nothing more, every command that is in time is carried out."""
        if not hasattr(self, "courier"):
            return
        self.say_hello()
        self.clock.advance_s(1)
        late = {name for name, one in self.flights.items() if one.deadline_ns < self.clock.now_ns()}
        for _ in range(2):
            for one in self.courier.due():
                ack, begins = self.inbox.receive(one, self.clock.now_ns())
                self.to_weaver.append(ack)
                if begins:
                    self.trainer.append(one)
            self.step()
            self.read_acks()
        assert set(self.flights) <= late
        self.every_effect_is_the_only_one()
        applied = {name for name, ends in self.ends.items() if ends == ["applied"]}
        assert applied == set(self.effects)


TestLossyWire = LossyWire.TestCase
TestLossyWire.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
