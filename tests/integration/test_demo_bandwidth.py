"""The demo of the bandwidth: links that become slow under a real run, and a tuner that sees it."""

from io import StringIO

import pytest
from rich.console import Console

from torchloom_core.cli.demo.bandwidth import play
from torchloom_core.cli.demo.bandwidth.script import SCRIPT, TRAINING
from torchloom_core.cli.demo.steplog import differences, failed_steps

pytestmark = [pytest.mark.integration, pytest.mark.long]

SLOW = next(at for at, phase in enumerate(SCRIPT) if phase.mbit == 20.0)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of both acts; how much faster the tuner is, a busy machine may spoil."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(play.report, "check", lambda report: None)
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
