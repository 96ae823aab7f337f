"""Nodes of trainers that wait become rollout workers, in mid-run and without a failed process."""

import pytest

from experiments.role_balance.run import Arm, configured, play

pytestmark = [pytest.mark.integration, pytest.mark.long]


def test_trainers_that_wait_for_rollouts_become_rollout_workers(tmp_path):
    config = configured(mode="act", window_s=8.0, dwell_s=8.0)
    done = play(Arm("role_balance", trainers=5), tmp_path / "job", 30.0, config)
    assert done.moves >= 1
    assert done.ends_with < 5
    assert done.both > 0
