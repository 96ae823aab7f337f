"""The demo of the bandwidth: links that become slow under a real run, and a tuner that sees it."""

from io import StringIO

import pytest
from rich.console import Console

from torchloom_core.demos.bandwidth import phases, play
from torchloom_core.demos.bandwidth.phases import TRAINING, Phase
from torchloom_core.demos.steplog import differences, failed_steps

pytestmark = [pytest.mark.integration, pytest.mark.long]

SHORT = (Phase(None, 5.0), Phase(200.0, 8.0), Phase(20.0, 16.0))
SLOW = 2


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of both acts; how much faster the tuner is, a busy machine may spoil."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(play, "check_promises", lambda promises: None)
        for module in (phases, play, play.report):
            patch.setattr(module, "SCRIPT", SHORT)
        return play.play_bandwidth(TRAINING, folder, Console(file=StringIO()))


def test_all_groups_are_in_the_same_mode_at_every_step_and_none_fails(report):
    for arm in (report.without, report.tuned):
        assert differences(arm.logs) == []
        assert not [row for row in failed_steps(arm.logs, arm.began[0]) if row["t"] < arm.began[-1]]


def test_the_tuner_compresses_where_the_links_are_slow_and_steps_are_faster_for_it(report):
    without, tuned = report.without.phases[SLOW], report.tuned.phases[SLOW]
    assert set(without.modes) == {"none"}
    assert "none" not in tuned.modes
    assert tuned.step_s < 0.6 * without.step_s
