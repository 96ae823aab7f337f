"""Without steering, quorums are those of torchft's own lighthouse.

``experiments/lighthouse/run.py histories`` plays thousands.
"""

import asyncio

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from experiments.lighthouse.histories import histories, is_decidable, ours, play_all

AT_ONCE = 25


# A smaller batch takes as long, and differences are reported.
@settings(max_examples=2, phases=[Phase.explicit, Phase.generate])
@given(st.lists(histories, min_size=AT_ONCE, max_size=AT_ONCE))
def test_any_history_gives_the_quorums_of_torchfts_own_lighthouse(batch):
    for played in asyncio.run(play_all(batch)):
        if is_decidable(played):
            assert ours(played) == played.answers, played
