"""A worker that sends more than it may is named, and cut if it goes on."""

import asyncio

import pytest

from torchloom_core.live.transport.inbound import OVER_LIMIT
from torchloom_core.live.weaver.flood_watch import FloodWatch
from torchloom_core.wire import subjects

SUBJECT = subjects.telemetry("run", "g1-0", 1)


@pytest.fixture
def cut():
    return []


@pytest.fixture
def watch(cut):
    watch = FloodWatch(10.0)

    async def note(worker):
        cut.append(worker)
        return "cut"

    watch.cut = note
    return watch


async def ticks(watch, seconds, floods=lambda now_s: True):
    """Return all notices of one tick a second."""
    notices = []
    for now_s in seconds:
        if floods(now_s):
            watch.dropped(SUBJECT, OVER_LIMIT)
        notices += watch.check(float(now_s))
        await asyncio.sleep(0)
    return notices


async def test_a_flood_is_named_once_and_its_worker_is_cut_after_the_time_set(watch, cut):
    (notice,) = await ticks(watch, range(10))
    assert (notice.kind, notice.worker) == ("flood", "g1-0")
    assert not cut
    await ticks(watch, range(10, 12))
    assert cut == ["g1-0"]


async def test_bursts_with_pauses_are_named_each_and_nobody_is_cut(watch, cut):
    notices = await ticks(watch, range(40), lambda now_s: now_s % 10 < 5)
    assert len(notices) == 4
    assert not cut


async def test_malformed_messages_are_no_flood(watch, cut):
    watch.dropped(SUBJECT, "no msgpack")
    assert not list(watch.check(0.0))


async def test_a_worker_that_sends_a_thousand_too_many_is_cut_before_the_next_tick(watch, cut):
    for _ in range(3000):
        watch.dropped(SUBJECT, OVER_LIMIT)
    await asyncio.sleep(0)
    assert cut == ["g1-0"]


async def test_a_flood_of_the_lighthouse_cuts_no_worker(watch, cut):
    watch.dropped(subjects.lighthouse("run"), OVER_LIMIT)
    assert not list(watch.check(0.0))
