"""Entries that come and go share keys, so that a month leaves no million of markers."""

from torchloom_core.live.weaver.state_slots import StateSlots


def test_keys_are_used_again_and_an_entry_keeps_its_own():
    slots, keys = StateSlots(), set()
    for number in range(1000):
        names = [f"flight.c1.{number}.{place}" for place in range(3)]
        took = [slots.take(name) for name in names]
        assert len({key for key, _ in took}) == 3
        assert all(begins for _, begins in took)
        assert [slots.take(name) for name in names] == [(key, False) for key, _ in took]
        assert [slots.release(name) for name in names] == [key for key, _ in took]
        keys |= {key for key, _ in took}
    assert keys == {"flight.1", "flight.2", "flight.3"}


def test_names_that_come_again_are_keys_themselves():
    slots = StateSlots()
    assert slots.take("knob.all.lr") == ("knob.all.lr", False)
    assert slots.release("knob.all.lr") == "knob.all.lr"
