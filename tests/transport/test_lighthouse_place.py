"""The run's lighthouse by its entry: one Weaver replaces it, and only if it is gone."""

import pytest

from torchloom_core.live.transport import lighthouse_place
from torchloom_core.live.transport.lighthouse_place import LighthousePlace

FIRST, SECOND, THIRD = "http://one:1", "http://two:2", "http://three:3"


@pytest.fixture
async def hosts(connect_bus, tmp_path):
    """A function that gives the place and the folder of one more Weaver."""

    async def host(name):
        bus = await connect_bus()
        return LighthousePlace(bus.state, None), tmp_path / name

    return host


async def test_of_two_weavers_that_find_it_gone_one_replaces_it(hosts):
    (first, at_first), (second, at_second), (third, at_third) = [await hosts(n) for n in "abc"]
    await first.take(FIRST, at_first)
    assert await second.elsewhere(at_second) == await third.elsewhere(at_third) == FIRST
    assert await third.take(THIRD, at_third, instead_of=FIRST) == ""
    assert await second.take(SECOND, at_second, instead_of=FIRST) == THIRD
    assert await first.elsewhere(at_first) == await second.elsewhere(at_second) == THIRD
    assert await third.elsewhere(at_third) == ""


async def test_one_declared_later_is_later_by_whatever_clock(hosts, monkeypatch):
    (first, at_first), (second, at_second) = [await hosts(name) for name in "ab"]
    assert await first.elsewhere(at_first) == ""
    await first.take(FIRST, at_first)
    now_ns = first.since_ns - 10**15
    monkeypatch.setattr(lighthouse_place.time, "time_ns", lambda: now_ns)
    await second.take(SECOND, at_second, instead_of=FIRST)
    assert second.since_ns == first.since_ns + 1
    again, _ = await hosts("b")
    assert await again.take(THIRD, at_second) == ""
    assert again.since_ns == second.since_ns
    assert await first.take(FIRST, at_first) == THIRD


async def test_a_weaver_that_replaced_it_may_say_so_twice(hosts):
    place, folder = await hosts("a")
    assert await place.take(FIRST, folder, instead_of="") == ""
    assert await place.take(FIRST, folder, instead_of=SECOND) == ""
    assert await place.elsewhere(folder) == ""


async def test_a_damaged_entry_counts_as_lost_and_is_named(connect_bus, hosts, caplog):
    place, folder = await hosts("a")
    await (await connect_bus()).state.put("lighthouse", b"{damaged")
    assert await place.elsewhere(folder) == ""
    assert not place.was_ours
    assert "key lighthouse: need a lighthouse, was b'{damaged'; it counts as lost" in caplog.text
    assert await place.take(FIRST, folder) == ""
    assert await place.elsewhere(folder) == ""
    assert place.was_ours


async def test_one_look_after_a_long_freeze_does_not_show_that_it_is_gone(hosts, monkeypatch):
    now_s = 0.0
    monkeypatch.setattr(lighthouse_place.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(lighthouse_place, "_LOOK_S", 0.0)
    place, _ = await hosts("a")
    url = "http://127.0.0.1:9"
    now_s = 100.0
    assert [await place.is_gone(url) for _ in range(3)] == [False, False, True]
