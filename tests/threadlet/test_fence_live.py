"""Ranks of real torchft that die, freeze, join and fail at the critical moments of a change.

Each rank makes its step in four calls, so that a rank that is not called any more is frozen at
exactly that moment. No Weaver takes part: the ranks decide on its offers alone.
"""

import pytest

from tests.threadlet.torchft_ranks import NEW, OLD, Run
from tests.threadlet.training.groups import NOT_WRITABLE
from torchloom_core.wire.operations import FencedChange, SetKnobs

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings(NOT_WRITABLE)]


@pytest.fixture
def run():
    run = Run()
    yield run
    run.close()


@pytest.fixture
def trio(run):
    """Three ranks that train together with another value than the script's default."""
    ranks = [run.add(name) for name in "abc"]
    run.together(*ranks)
    run.rest(*ranks)
    offer(ranks, OLD, number=1)
    run.until_committed(*ranks)
    assert [rank.width for rank in ranks] == [OLD] * 3
    for rank in ranks:
        rank.acks.clear()
    return ranks


def offer(ranks, value=NEW, number=2):
    for rank in ranks:
        rank.receive(FencedChange(number=number, do=SetKnobs(values={"width": value})), number)


def assert_one_past(*ranks):
    """All live ranks are at one step, with the same weights and the same knob at each step."""
    assert len({(rank.step, rank.width, rank.weights.item()) for rank in ranks}) == 1
    for first in ranks:
        for other in ranks:
            both = first.used.keys() & other.used.keys()
            assert {s: first.used[s] for s in both} == {s: other.used[s] for s in both}


def landed(rank, value=NEW):
    return [step for what, step in rank.set_at if what == value]


def test_a_vote_is_void_if_a_rank_dies_before_the_gradients(run, trio):
    a, b, c = trio
    offer(trio)
    run.all("begin", a, b, c)
    c.die()
    run.all("reduce", a, b)
    assert run.all("commit", a, b) == [False, False]
    run.all("end", a, b)
    assert (a.width, b.width) == (OLD, OLD)
    run.until_committed(a, b)
    assert (a.width, b.width) == (NEW, NEW)
    assert a.ends() == b.ends() == [("applied", a.step)]
    run.until_committed(a, b)
    assert_one_past(a, b)


def test_the_others_make_a_committed_change_if_a_rank_dies_before_making_it(run, trio):
    a, b, c = trio
    offer(trio)
    for what in ("begin", "reduce", "commit"):
        run.all(what, a, b, c)
    c.die()
    run.all("end", a, b)
    assert a.ends() == b.ends() == [("applied", a.step)]
    run.until_committed(a, b)
    again = run.add("c")
    run.together(again, a, b)
    assert run.rest(again, a, b)
    assert set(again.used.values()) == {NEW}
    assert_one_past(a, b, again)


def test_a_change_committed_only_by_a_dead_rank_is_agreed_on_again_without_it(run, trio):
    a, b, c = trio
    offer(trio)
    for what in ("begin", "reduce"):
        run.all(what, a, b, c)
    assert c.commit()
    c.die()
    for rank in (a, b):
        rank.manager.report_error(RuntimeError("its own"))
    assert run.all("commit", a, b) == [False, False]
    run.all("end", a, b)
    assert (a.width, b.width) == (OLD, OLD)
    run.until_committed(a, b)
    assert landed(a) == landed(b) == [a.step]
    run.until_committed(a, b)
    assert_one_past(a, b)


def test_a_rank_that_joins_in_a_changes_step_reduces_with_the_old_value_and_makes_it(run, trio):
    a, b, c = trio
    c.die()
    run.until_committed(a, b)
    joiner = run.add("d")
    offer((a, b))
    run.together(joiner, a, b)
    assert joiner.width == OLD
    assert run.rest(a, b, joiner)
    assert landed(a) == landed(b) == landed(joiner) == [a.step]
    run.until_committed(a, b, joiner)
    assert_one_past(a, b, joiner)


@pytest.mark.long
@pytest.mark.parametrize("until_call", [0, 1, 2, 3])
def test_a_frozen_rank_has_the_change_before_it_reduces_again(run, trio, until_call):
    a, b, c = trio
    offer(trio)
    calls = ("begin", "reduce", "commit", "end")
    for what in calls[:until_call]:
        run.all(what, a, b, c)
    for what in calls[until_call:]:  # c is frozen
        run.all(what, a, b)
    run.until_committed(a, b)
    run.until_committed(a, b)
    assert (a.width, b.width) == (NEW, NEW)
    for what in calls[until_call:] if until_call else ():  # c is back, and ends its step
        run.all(what, c)
    run.together(c, a, b)
    assert c.width == NEW
    assert run.rest(a, b, c)
    assert_one_past(a, b, c)


@pytest.mark.long
def test_a_rank_that_committed_alone_loads_the_state_of_those_that_repeated_the_step(run, trio):
    a, b, c = trio
    offer((a, b))
    offer((c,), value=NEW + 1, number=3)
    for what in ("begin", "reduce"):
        run.all(what, a, b, c)
    for rank in (a, b):
        rank.manager.report_error(RuntimeError("its own"))
    assert run.all("commit", a, b) == [False, False]
    run.all("end", a, b)
    run.until_committed(a, b)  # the same step again, without c, with the change
    assert (a.width, b.width) == (NEW, NEW)
    assert c.commit()
    c.end()
    assert (c.step, c.width) == (a.step, OLD)
    run.together(c, a, b)
    assert not run.rest(a, b, c)  # they see that their pasts differ
    assert run.whole(a, b, c)
    assert_one_past(a, b, c)
    assert c.width == NEW


def test_a_change_that_fails_on_one_rank_is_rolled_back_before_any_rank_reduces(run, trio):
    a, b, c = trio
    b.refuses = {NEW}
    offer(trio)
    run.whole(a, b, c)
    assert [rank.width for rank in trio] == [NEW, OLD, NEW]
    step = a.step
    assert a.ends() == c.ends() == [("applied", step)]
    assert b.ends() == [("failed", step)]
    run.all("begin", a, b, c)
    assert [rank.width for rank in trio] == [OLD] * 3
    assert run.rest(a, b, c)
    assert_one_past(a, b, c)


def test_an_unreadable_knob_is_rolled_back_and_no_rank_exits(run, trio):
    a, b, c = trio
    for rank in trio:
        rank.is_unreadable = True
    offer(trio)
    run.whole(a, b, c)
    assert [rank.ends()[-1][0] for rank in trio] == ["failed"] * 3
    c.die()
    run.until_committed(a, b)
    joiner = run.add("d")
    joiner.is_unreadable = True
    run.together(joiner, a, b)
    assert run.rest(a, b, joiner)
    assert joiner.width == OLD
    for rank in (a, b, joiner):
        rank.is_unreadable = False
    offer((a, b, joiner), number=3)
    run.until_committed(a, b, joiner)
    assert_one_past(a, b, joiner)
    assert joiner.width == NEW


def test_a_rank_that_cannot_roll_back_exits_and_the_others_continue(run, trio):
    a, b, c = trio
    b.refuses = {NEW}
    offer(trio)
    run.whole(a, b, c)
    a.refuses = {OLD}
    with pytest.raises(SystemExit, match="no room for 4"):
        run.all("begin", b, c, a)
    a.die()
    run.rest(b, c)
    run.until_committed(b, c)
    assert_one_past(b, c)
    assert b.width == OLD


def test_a_rank_that_can_neither_make_nor_roll_back_a_change_exits(run, trio):
    a, b, c = trio
    b.refuses = {NEW, OLD}
    offer(trio)
    with pytest.raises(SystemExit, match="knob width cannot be set to 4"):
        run.whole(a, c, b)
    b.die()
    run.until_committed(a, c)
    assert_one_past(a, c)


@pytest.mark.long
def test_an_offer_during_a_heal_waits_until_the_joiner_has_it_too(run):
    run.use_async_quorum = True
    a, b, joiner = (run.add(name) for name in "abc")
    run.together(a, b)
    run.rest(a, b)
    offer((a, b), OLD, number=1)
    run.until_committed(a, b)
    run.together(joiner, a, b)  # the joiner has its peer's state
    offer((a, b))
    run.rest(joiner, a, b)
    assert (a.width, b.width, joiner.width) == (OLD, OLD, OLD)
    offer((joiner,))
    run.until_committed(joiner, a, b)
    assert (a.width, b.width, joiner.width) == (NEW, NEW, NEW)
    assert_one_past(a, b, joiner)
