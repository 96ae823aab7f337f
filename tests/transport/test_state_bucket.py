"""The Weaver's state in the bucket: one key an entry, and one Weaver's at a time."""

import pytest
from nats.js.api import DeliverPolicy

from torchloom_core.floor.errors import (
    BrokerError,
    OvertakenError,
    RefusedByBrokerError,
    StateError,
)
from torchloom_core.live.transport.state_bucket import WHOLE_KEY
from torchloom_core.wire.codec import MAX_MESSAGE_BYTES


@pytest.fixture
def weavers(connect_bus):
    """Return a function that connects one more Weaver, which has claimed an epoch."""

    async def weaver():
        bus = await connect_bus()
        return bus, await bus.state.claim_epoch()

    return weaver


async def test_a_first_weaver_finds_nothing(weavers):
    bus, _ = await weavers()
    assert await bus.state.left() == (0, {})


async def test_a_successor_finds_stored_entries_and_not_deleted_ones(weavers):
    first, epoch = await weavers()
    await first.state.left()
    await first.state.take_over()
    await first.store({"plan.p1": b"1", "flight.c1.1": b"2", "knob.of.g0-0.lr": b"3"})
    await first.store({"plan.p1": b"11", "flight.c1.1": None})
    second, _ = await weavers()
    assert await second.state.left() == (epoch, {"plan.p1": b"11", "knob.of.g0-0.lr": b"3"})


async def test_a_deleted_entry_stays_deleted(weavers):
    """A mark that expires gives the entry back to a server that is killed after it."""
    bus, epoch = await weavers()
    await bus.state.left()
    await bus.state.take_over()
    await bus.store({"flight.c1.1": b"1"})
    await bus.store({"flight.c1.1": None})
    js = bus._link.client.jetstream()
    mark = await js.get_last_msg("KV_TL_run", f"$KV.TL_run.{epoch}.flight.c1.1")
    assert mark.headers == {"KV-Operation": "DEL"}


async def test_thousands_of_entries_are_stored_in_one_go(weavers):
    first, epoch = await weavers()
    await first.state.left()
    await first.state.take_over()
    entries = {f"flight.c1.{number}": b"x" * 200 for number in range(10_000)}
    await first.store(entries)
    second, _ = await weavers()
    assert await second.state.left() == (epoch, entries)


async def test_a_superseded_weaver_cannot_overwrite_its_successors_state(weavers):
    first, _ = await weavers()
    await first.state.left()
    await first.state.take_over()
    await first.store({"plan.p1": b"old"})
    await first.state.put("granted.0", b"of no epoch")
    second, epoch = await weavers()
    _, entries = await second.state.left()
    await second.store({**entries, "plan.p2": b"new"})
    await second.state.take_over()
    await first.store({"plan.p1": None, "plan.p2": b"late", "plan.p3": b"late"})
    third, _ = await weavers()
    assert await third.state.left() == (epoch, {"plan.p1": b"old", "plan.p2": b"new"})
    assert await third.state.items("granted") == {"0": b"of no epoch"}


async def test_a_take_over_cut_short_leaves_the_state_of_the_weaver_before(weavers):
    first, epoch = await weavers()
    await first.state.left()
    await first.store({"plan.p1": b"1"})
    await first.state.take_over()
    second, _ = await weavers()
    await second.state.left()
    await second.store({"plan.p1": b"half"})  # and dies here
    third, newest = await weavers()
    assert await third.state.left() == (epoch, {"plan.p1": b"1"})
    await third.store({"plan.p1": b"1"})
    await third.state.take_over()
    assert sorted(await third.state._keys()) == [f"{newest}.plan.p1", "epoch", "whole"]


async def test_of_two_simultaneous_take_overs_one_fails(weavers):
    first, _ = await weavers()
    second, _ = await weavers()
    await first.state.left()
    await second.state.left()
    await second.state.take_over()
    with pytest.raises(StateError, match="another Weaver took over run run"):
        await first.state.take_over()


async def test_the_later_of_two_weavers_reads_the_state_again(weavers):
    first, epoch = await weavers()
    second, _ = await weavers()
    await first.state.left()
    await second.state.left()
    await first.store({"plan.p1": b"1"})
    await first.state.take_over()
    with pytest.raises(OvertakenError):
        await second.state.take_over()
    assert await second.state.left() == (epoch, {"plan.p1": b"1"})
    await second.state.take_over()


async def test_to_take_over_twice_changes_nothing(weavers):
    bus, _ = await weavers()
    await bus.state.left()
    await bus.state.take_over()
    bus.state._whole_revision = 0  # as if the answer to the first had been lost
    await bus.state.take_over()


async def test_an_entry_that_the_server_will_never_take_is_one_clear_line(weavers):
    bus, _ = await weavers()
    with pytest.raises(RefusedByBrokerError, match=r"store the state: .*maximum payload"):
        await bus.store({"plan.p1": b"x" * (MAX_MESSAGE_BYTES + 1)})


async def test_an_invalid_epoch_of_the_state_is_one_clear_line(weavers):
    bus, _ = await weavers()
    await bus.state._bucket.put(WHOLE_KEY, b"\xff" * 1000)
    with pytest.raises(BrokerError, match=r"key whole: need a whole number, was b'\\xff") as caught:
        await bus.state.left()
    assert len(str(caught.value)) < 200


async def test_a_state_is_read_whole_from_a_cluster_of_which_a_server_is_behind(weavers):
    """The first consumer is on a server that has stored nothing of it yet."""
    first, epoch = await weavers()
    await first.state.left()
    await first.state.take_over()
    await first.store({"actions.stopped": b"1", "knob.lr": b"2"})
    second, _ = await weavers()
    second.state._copies = 3
    add, seen = second.state._js.add_consumer, []

    async def behind(stream, config):
        if not seen:
            config.deliver_policy, config.opt_start_seq = DeliverPolicy.BY_START_SEQUENCE, 1 << 40
        seen.append(config)
        return await add(stream, config)

    second.state._js.add_consumer = behind
    assert await second.state.left() == (epoch, {"actions.stopped": b"1", "knob.lr": b"2"})
    assert len(seen) == 2


async def test_a_weaver_that_was_cut_off_while_it_took_over_deletes_nothing_of_its_successor(
    weavers,
):
    first, _ = await weavers()
    await first.state.left()
    list_keys = first.state._keys

    async def after_a_while():
        second, epoch = await weavers()
        await second.state.left()
        await second.state.take_over()
        await second.store({"knob.lr": b"2"})
        later.append(epoch)
        return await list_keys()

    later = []
    first.state._keys = after_a_while
    await first.state.take_over()
    third, _ = await weavers()
    assert await third.state.left() == (later[0], {"knob.lr": b"2"})
