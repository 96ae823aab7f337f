"""trl's GRPO learns from rollouts of other processes, while these are killed."""

import random

import pytest

pytest.importorskip("trl")

from experiments.rlhf.kills import judged
from experiments.rlhf.processes import Play, until

pytestmark = [pytest.mark.integration, pytest.mark.long]
STEPS = 60


def test_a_trainer_makes_all_its_steps_while_rollout_workers_are_killed(tmp_path):
    with Play(tmp_path, rollouts=2, seed=0) as play:
        trainer = play.train(STEPS)
        for at in (10, 20, 30):
            until(lambda at=at: len(play.lines()) >= at)
            assert play.kill(random.Random(at))
        assert trainer.wait() == 0
        done = judged(play.lines(), seed=0, kills=3, steps=STEPS, failed=False)
    assert done.steps == STEPS
    assert done.missing_steps == 0
    assert done.last_reward > 0.2  # from 0.14
