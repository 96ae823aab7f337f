"""A Weaver takes a higher epoch on the word of workers: of a believable one, a few times."""

import asyncio

import pytest

from torchloom_core.floor.errors import OutrankedError
from torchloom_core.live.weaver.epoch_rise import EpochRises, EpochWatch
from torchloom_core.wire.messages import Hello


class Watcher:
    def __init__(self, rises, claimed=10):
        self.ended, self.warned = [], []
        self.watch = EpochWatch(
            10,
            rises.believed,
            self.newest,
            self.ended.append,
            lambda *warned: self.warned.append(warned),
        )
        self._claimed = claimed

    async def newest(self):
        return self._claimed

    async def receives(self, epoch):
        hello = Hello(
            run="run", worker="g0-0", incarnation=1, group="g0", rank=0, node="n0", epoch=epoch
        )
        outranked = self.watch.is_outranked_by(hello)
        await asyncio.sleep(0)
        return outranked


@pytest.mark.parametrize(("epoch", "outranked"), [(0, False), (10, False), (11, True)])
async def test_only_a_higher_epoch_ends_a_weaver(epoch, outranked):
    watch = Watcher(EpochRises())
    assert await watch.receives(epoch) is outranked
    assert [error.epoch for error in watch.ended] == [epoch] * outranked


async def test_an_epoch_that_a_later_weaver_of_the_run_has_claimed_is_left_to_it():
    watch = Watcher(EpochRises(), claimed=11)
    assert await watch.receives(11)
    assert not watch.ended


async def test_an_impossible_epoch_and_a_fourth_one_are_logged_and_not_believed():
    rises = EpochRises()
    watch = Watcher(rises)
    assert not await watch.receives(2**53)
    for epoch in (20, 2000, 4000):
        rises.note(OutrankedError("", epoch))
        assert rises.above > epoch
    watch = Watcher(rises)
    assert not await watch.receives(6000)
    assert not watch.ended
    ((key, text),) = watch.warned
    assert key == "g0-0"
    assert "g0-0 has obeyed epoch 6000, above this Weaver's 10" in text


async def test_after_a_forged_epoch_a_later_weaver_whose_state_is_lost_can_go_above_it():
    now = 1000
    rises = EpochRises(lambda: now)
    forged = rises.believed
    rises.note(OutrankedError("", forged))
    obeyed = rises.above + 1
    now += 60
    later = EpochRises(lambda: now)
    watch = Watcher(later)
    assert await watch.receives(obeyed)
    later.note(watch.ended[0])
    assert later.above >= obeyed
