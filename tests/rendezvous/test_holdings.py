"""What workers hold that have left a generation."""

import pytest

from torchloom_core.live.rendezvous.holdings import Holdings, holdings, with_start
from torchloom_core.live.rendezvous.known_worker import KnownWorker
from torchloom_core.wire.generations import Join, Stopped

BEHIND = Stopped(generation=2, committed=4, reduced=5, layers=(0, 1), spare=(2,))


@pytest.mark.parametrize(("committed", "held"), [(4, {0, 1, 2}), (5, {0, 1}), (6, set())])
def test_spare_layers_count_unless_another_worker_has_committed_more(committed, held):
    other = Stopped(generation=2, committed=committed)
    assert holdings({"a": BEHIND, "b": other}).layers["a"] == held


def known(committed):
    join = Join(worker="a", incarnation=1, store="a:1", layers=3, committed=committed)
    return KnownWorker(join, 0.0)


def test_until_the_first_step_is_committed_workers_can_make_all_layers_themselves():
    workers = {"a": known(4), "s": known(4), "x": known(-1)}
    has = Holdings(4, {"a": frozenset()}, {"a": frozenset()})
    found = with_start(has, workers["a"].join, workers).layers
    assert found == {"a": {0, 1, 2}, "s": {0, 1, 2}}
    later = has._replace(committed=5)
    assert with_start(later, workers["a"].join, workers) == later
