"""The bandwidth of links that were probed more than once."""

import numpy as np

from torchloom_core.plugin import Links
from torchloom_policies.allreduce.link_probes import ProbedLinks

GROUPS = ("g0", "g1", "g2")


def links(now_s, measured):
    """Return links with these measurements: from, to, bytes per second, when."""
    found = Links(*(np.full((3, 3), np.nan) for _ in range(4)))
    for pair, (bytes_per_s, at_s) in measured.items():
        found.bytes_per_s[pair], found.age_s[pair] = bytes_per_s, now_s - at_s
    return found


def test_a_link_measured_for_the_first_time_is_not_evidence_of_a_change():
    probed = ProbedLinks()
    assert probed.take(GROUPS, links(10.0, {(0, 1): (6e6, 9.0)}), 10.0) is None
    now = {(0, 1): (1.2e8, 19.0), (2, 0): (1.1e8, 19.5)}
    assert probed.take(GROUPS, links(20.0, now), 20.0) == 19.0
    assert probed.take(GROUPS, links(30.0, {(1, 2): (1e6, 29.0)}), 30.0) is None


def test_links_that_changed_together_are_not_reported_again_one_by_one():
    probed = ProbedLinks()
    before = {(0, 1): (6e6, 9.0), (1, 2): (6e6, 9.0), (2, 0): (6e6, 9.0)}
    assert probed.take(GROUPS, links(10.0, before), 10.0) is None
    now = {(0, 1): (1.2e8, 19.0)}
    assert probed.take(GROUPS, links(20.0, now), 20.0) == 19.0
    for at_s, pair in ((29.0, (1, 2)), (39.0, (2, 0))):
        now[pair] = 1.2e8, at_s
        assert probed.take(GROUPS, links(at_s + 1.0, now), at_s + 1.0) is None
    assert np.isfinite(probed.bytes_per_s).sum() == 3


def test_the_links_have_changed_only_if_all_measured_again_have():
    probed = ProbedLinks()
    before = {(0, 1): (6e6, 9.0), (1, 2): (6e6, 9.0)}
    assert probed.take(GROUPS, links(10.0, before), 10.0) is None
    now = {(0, 1): (1.2e8, 19.0), (1, 2): (6.1e6, 19.0)}
    assert probed.take(GROUPS, links(20.0, now), 20.0) is None
    assert probed.bytes_per_s[0, 1] == 1.2e8
