"""What workers hold that have left a generation."""

import pytest

from torchloom_core.live.rendezvous.holdings import holdings
from torchloom_core.wire.generations import Stopped

BEHIND = Stopped(generation=2, committed=4, reduced=5, layers=(0, 1), spare=(2,))


@pytest.mark.parametrize(("committed", "held"), [(4, {0, 1, 2}), (5, {0, 1}), (6, set())])
def test_spare_layers_count_unless_another_worker_has_committed_more(committed, held):
    other = Stopped(generation=2, committed=committed)
    assert holdings({"a": BEHIND, "b": other}).layers["a"] == held
