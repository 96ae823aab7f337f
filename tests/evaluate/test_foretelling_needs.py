"""Of what knows the future that is flagged which is read, unless it was known beforehand."""

import numpy as np

from tests.evaluate.hindsight import TASK, disks, needs_of
from torchloom_core.evaluate.forecasts.foretelling import foretelling
from torchloom_core.plugin import NeedFaults


def test_only_what_is_read_is_flagged_and_of_that_nothing_that_was_known_beforehand(tmp_path):
    fleet = disks(0, count=200)
    fleet.metrics |= {"fails": 1.0 * fleet.failed[fleet.of]}
    fleet.rack = np.where(fleet.failed, 99, np.arange(200) % 4)
    fleet.notes += [(max(0.0, day - 3.0), row, "return opened") for day, row in fleet.failures]
    bundle = fleet.write(tmp_path / "t.tltrace")

    def named(needs, *known_before):
        paced = {"tick_s": 86_400.0, "every_s": 86_400.0, "known_before": known_before}
        return {flag.split(": ")[1] for flag in foretelling(bundle, needs, TASK, **paced)}

    needs = needs_of(bundle)
    without = [need for need in needs if not isinstance(need, NeedFaults)]
    all_of_it = {"fails", "its rack", "return opened"}
    assert named(needs) == all_of_it
    assert named(without) == {"fails"}
    for known in all_of_it:
        assert named(needs, known) == all_of_it - {known}
    assert named([]) == set()
