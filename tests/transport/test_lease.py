"""At most one Weaver is sure of the lease, and a dead one is replaced in time: in virtual time."""

import asyncio
import random
import selectors

import nats.errors
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom_core.floor.errors import SupersededError
from torchloom_core.floor.first_done import end_all
from torchloom_core.live.transport.lease import BucketKey, Lease

LEASE_S = 1.5


class _Jump(selectors.DefaultSelector):
    """Waits for no file: the loop's clock jumps to the next timer instead."""

    now_s = 0.0

    def select(self, timeout=None):
        self.now_s += timeout or 0.0
        return super().select(0)


def in_virtual_time(coroutine):
    selector = _Jump()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now_s
    loop._clock_resolution = 1e-9
    try:
        return loop.run_until_complete(asyncio.wait_for(coroutine, 1000.0))
    finally:
        loop.close()


class Broker:
    """The key; its answers and their order are up to chance, as are losses of either way."""

    def __init__(self, rng, delay_s, loss):
        self.rng, self.delay_s, self.loss = rng, delay_s, loss
        self.value, self.revision, self.is_up = None, 0, True

    async def way(self):
        await asyncio.sleep(self.rng.uniform(0.0, self.delay_s))
        if not self.is_up or self.rng.random() < self.loss:
            await asyncio.sleep(self.rng.uniform(0.0, 1.0))
            raise nats.errors.TimeoutError


class Process:
    """A Weaver's way to the broker; it can be frozen or cut off, and has a clock of its own."""

    def __init__(self, broker):
        self.broker, self.frozen_until_s, self.is_dead = broker, 0.0, False
        ahead_s, loop = broker.rng.uniform(-1e6, 1e6), asyncio.get_running_loop()
        self.lease = Lease(self, "run", LEASE_S, lambda: loop.time() + ahead_s)

    async def thawed(self):
        loop = asyncio.get_running_loop()
        while self.frozen_until_s > loop.time():  # noqa: ASYNC110 - it may be frozen longer
            await asyncio.sleep(self.frozen_until_s - loop.time())

    async def call(self, act):
        await self.thawed()
        await self.broker.way()
        found = act()
        await self.broker.way()
        await self.thawed()
        if self.is_dead:
            await asyncio.Event().wait()
        return found

    async def read(self):
        return await self.call(lambda: (self.broker.value, self.broker.revision))

    async def swap(self, value, revision):
        def act():
            if self.is_dead or revision != self.broker.revision:
                return None
            self.broker.value, self.broker.revision = value, revision + 1
            return revision + 1

        return await self.call(act)

    async def live(self):
        """Wait, lead until replaced, and wait again."""
        while True:
            await self.lease.wait(free, free)
            try:
                await self.lease.lost()
            except SupersededError:
                await self.lease.give_back()
                fresh = Process(self.broker).lease
                fresh._store, fresh._now_s = self, self.lease._now_s
                self.lease = fresh


async def free():
    return True


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.05, 0.4]), st.sampled_from([0.0, 0.1]))
def test_never_are_two_sure_whatever_is_late_lost_frozen_or_restarted(seed, delay_s, loss):
    async def play():
        rng = random.Random(seed)
        broker = Broker(rng, delay_s, loss)
        processes = [Process(broker) for _ in range(3)]
        tasks = [asyncio.create_task(process.live()) for process in processes]
        loop = asyncio.get_running_loop()
        for _ in range(400):
            await asyncio.sleep(rng.uniform(0.0, 0.3))
            if rng.random() < 0.1:
                one = rng.choice(processes)
                one.frozen_until_s = loop.time() + rng.uniform(0.0, 5.0)
            if rng.random() < 0.03:
                broker.is_up = not broker.is_up
            sure = [p for p in processes if p.lease.is_held and p.lease.is_sure]
            assert len(sure) <= 1
        broker.is_up, broker.loss = True, 0.0
        await asyncio.sleep(5.0 + 10 * (LEASE_S + delay_s))
        leaders = [p for p in processes if p.lease.is_held and p.lease.is_sure]
        assert len(leaders) == 1 or delay_s
        await end_all(*tasks)
        for process in processes:
            await process.lease.give_back()

    in_virtual_time(play())


@pytest.mark.parametrize("seed", range(6))
def test_a_dead_leader_is_replaced_within_a_lease_and_two_looks(seed):
    async def play():
        loop = asyncio.get_running_loop()
        broker = Broker(random.Random(seed), 0.01, 0.0)
        first, *others = processes = [Process(broker) for _ in range(3)]
        await first.lease.wait(free, free)
        tasks = [asyncio.create_task(process.live()) for process in others]
        await asyncio.sleep(broker.rng.uniform(3.0, 4.0))
        assert [p.lease.is_held for p in processes] == [True, False, False]
        first.is_dead, died_s = True, loop.time()
        while not any(p.lease.is_held for p in others):  # noqa: ASYNC110 - to the millisecond
            await asyncio.sleep(0.001)
        assert loop.time() - died_s < LEASE_S + 2 * LEASE_S / 8 + 0.1
        await end_all(*tasks)
        for process in processes:
            await process.lease.give_back()

    in_virtual_time(play())


def test_a_lease_that_is_given_back_is_taken_at_once_and_a_broker_that_was_down_costs_nobody_his():
    async def play():
        loop = asyncio.get_running_loop()
        broker = Broker(random.Random(1), 0.01, 0.0)
        first, second = Process(broker), Process(broker)
        await first.lease.wait(free, free)
        waiting = asyncio.create_task(second.lease.wait(free, free))
        for _ in range(5):
            broker.is_up = False
            await asyncio.sleep(broker.rng.uniform(0.1, 30.0))
            assert not second.lease.is_held
            broker.is_up = True
            await asyncio.sleep(2.0)
            assert first.lease.is_held
            assert first.lease.is_sure
        gave_s = loop.time()
        await first.lease.give_back()
        await waiting
        assert loop.time() - gave_s < 0.5
        await second.lease.give_back()

    in_virtual_time(play())


def test_a_standby_that_cannot_lead_leaves_the_lease_to_one_that_can():
    async def play():
        broker = Broker(random.Random(1), 0.01, 0.0)
        full, other, later = [Process(broker).lease for _ in range(3)]
        has_room = False

        async def can_lead():
            return has_room

        waiting = asyncio.create_task(full.wait(free, can_lead))
        await asyncio.sleep(5.0)
        assert not waiting.done()
        assert await other.wait(free, free) is False  # nobody led before
        await other.give_back()
        assert await later.wait(free, free) is True
        await later.give_back()
        await asyncio.sleep(5.0)
        assert not waiting.done()
        has_room = True
        assert await waiting is True
        await full.give_back()

    in_virtual_time(play())


async def test_the_bucket_keeps_one_of_several_and_the_loser_is_told_by_its_next_write(connect_bus):
    buses = [await connect_bus() for _ in range(3)]
    first, second, third = [bus.lease for bus in buses]
    await first.seize()
    taken = [asyncio.create_task(lease.wait(free, free)) for lease in (second, third)]
    await asyncio.sleep(0)
    await second.seize()
    with pytest.raises(SupersededError, match="another Weaver took over run run"):
        await first.lost()
    with pytest.raises(SupersededError):
        await first.sure()
    assert await BucketKey(buses[0]._link, "run").swap(b"x", 0) is None
    await end_all(*taken)
    await second.give_back()


def test_a_leader_without_standbys_waits_for_nothing_and_tells_the_first_one_in_time():
    async def play():
        broker = Broker(random.Random(1), 0.0, 0.0)
        leader, later = Process(broker), Process(broker)
        alone = True
        leader.lease.is_alone = lambda: alone
        await leader.lease.seize()
        await asyncio.sleep(60.0)
        assert broker.revision < 25  # of 160 with a standby
        broker.is_up = False
        await asyncio.sleep(60.0)
        assert leader.lease.is_sure
        broker.is_up = True
        waiting = asyncio.create_task(later.live())
        await asyncio.sleep(0.5)
        alone = False
        await asyncio.sleep(30.0)
        assert leader.lease.is_sure
        assert not later.lease.is_held
        leader.is_dead = True
        await asyncio.sleep(2 * LEASE_S)
        assert later.lease.is_held
        waiting.cancel()

    in_virtual_time(play())


def test_who_waits_for_a_leader_that_cannot_write_goes_on_once_it_knows_that_it_is_alone():
    async def play():
        broker = Broker(random.Random(1), 0.0, 0.0)
        leader, alone = Process(broker), False
        leader.lease.is_alone = lambda: alone
        await leader.lease.seize()
        broker.is_up = False  # or its disk is full
        await asyncio.sleep(2 * LEASE_S)
        waiting = asyncio.create_task(leader.lease.sure())
        await asyncio.sleep(LEASE_S)
        assert not waiting.done()
        alone = True
        await asyncio.wait_for(waiting, LEASE_S)

    in_virtual_time(play())
