"""The ring's order as a knob of real torchft: changed at one step, without a lost step."""

from datetime import timedelta

import pytest

from tests.threadlet.torchft_ranks import Rank, Run
from tests.threadlet.training.groups import NOT_WRITABLE
from torchloom_core.wire.operations import FencedChange, SetKnobs
from torchloom_threadlet.compression import CompressedProcessGroup

torchft = pytest.importorskip("torchft")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.filterwarnings(NOT_WRITABLE),
]


SOON = timedelta(seconds=8)
"""The timeout of the wait for a peer that does not come."""


class Ordered(Rank):
    """A rank whose ring can be ordered, and which records the order of each step."""

    def __init__(self, *arguments):
        self.rings = {}
        super().__init__(*arguments)

    timeout = SOON

    def process_group(self):
        return CompressedProcessGroup(torchft.ProcessGroupGloo(timeout=self.timeout))

    @property
    def pg(self):
        return self.manager._pg

    def reduce(self):
        super().reduce()
        self.rings[self.step] = self.pg._ring.ranks
        assert self.manager.participating_rank() == self.pg._ring.ranks[self.pg._rank]


class Orders(Run):
    rank = Ordered


@pytest.fixture
def run():
    run = Orders()
    yield run
    run.close()


@pytest.fixture
def trio(run):
    ranks = [run.add(name) for name in "abc"]
    run.together(*ranks)
    assert run.rest(*ranks)
    return ranks


def offer(ranks, order, number=1):
    for rank in ranks:
        rank.receive(FencedChange(number=number, do=SetKnobs(values={"ring_order": order})), number)


def assert_one_past(*ranks):
    assert len({(rank.step, rank.weights.item(), rank.pg.ring_order) for rank in ranks}) == 1
    for step in set.intersection(*(set(rank.used) for rank in ranks)):
        assert len({rank.rings[step - 1] for rank in ranks}) == 1


def test_an_order_lands_at_one_step_and_no_step_is_lost(run, trio):
    quorum = trio[0].manager._quorum_id
    for number, (order, ranks) in enumerate(
        [("c,a", (2, 0, 1)), ("b,c,a", (1, 2, 0)), ("c,a", (2, 0, 1)), ("", (0, 1, 2))], 1
    ):
        offer(trio, order, number)
        began = trio[0].step
        assert run.whole(*trio)  # in which it is voted on
        assert run.whole(*trio)
        assert {rank.rings[began + 1] for rank in trio} == {ranks}
        assert {rank.step for rank in trio} == {began + 2}
        assert [rank.ends() for rank in trio] == [[("applied", began + 1)]] * 3
        for rank in trio:
            rank.acks.clear()
        assert_one_past(*trio)
    assert {rank.manager._quorum_id for rank in trio} == {quorum}


def test_the_others_keep_the_new_order_when_a_rank_dies(run, trio):
    a, b, c = trio
    offer(trio, "c,b,a")
    assert run.whole(*trio)
    run.all("begin", *trio)
    c.die()
    run.all("reduce", a, b)
    assert run.all("commit", a, b) == [False, False]
    run.all("end", a, b)
    run.until_committed(a, b)
    assert {rank.rings[rank.step - 1] for rank in (a, b)} == {(1, 0)}
    assert_one_past(a, b)


def test_a_joiner_inherits_the_order_and_takes_its_place_a_step_later(run, trio):
    a, b, c = trio
    offer(trio, "d,c,b,a")
    assert run.whole(*trio)
    assert run.whole(*trio)
    joiner = run.add("d")
    run.together(joiner, a, b, c)
    everyone = a, b, c, joiner
    assert run.rest(*everyone)
    assert {rank.rings[rank.step - 1] for rank in everyone} == {(2, 1, 0, 3)}
    assert joiner.pg.ring_order == "d,c,b,a"
    assert run.whole(*everyone)
    assert {rank.rings[rank.step - 1] for rank in everyone} == {(3, 2, 1, 0)}
    assert_one_past(*everyone)


def test_a_rank_that_cannot_reorder_fails_the_step_and_the_next_quorum_is_in_order(run, trio):
    *_, c = trio

    def fail(*arguments):
        raise RuntimeError("planted")

    offer(trio, "c,b,a")
    assert run.whole(*trio)
    reorder, c.pg.reorder = c.pg.reorder, fail
    assert not run.whole(*trio)
    c.pg.reorder = reorder
    assert "the ring has no new order: RuntimeError: planted" in str(c.manager.errored())
    run.until_committed(*trio)
    assert {rank.rings[rank.step - 1] for rank in trio} == {(2, 1, 0)}
    assert_one_past(*trio)
