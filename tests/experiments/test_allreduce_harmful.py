"""What is concluded of a mode that hurts."""

import math
from itertools import accumulate

from experiments.allreduce import harmful
from experiments.allreduce.arm import TUNER, Played


def run(*parts):
    """Return a run in which so many steps of .5 s were made in a mode, at a loss that moves on."""
    rows, step = [], 0
    for mode, losses in parts:
        for loss in losses:
            step += 1
            said = {"event": "step", "step": step, "t": step / 2, "step_time": 0.5}
            rows.append({**said, "mode": mode, "loss": loss, "committed": True})
    return Played(TUNER, 1, [rows], [0.0, 40.0])


def line(start, end, steps=60):
    return list(accumulate([(end - start) / steps] * (steps - 1), initial=start))


def test_a_loss_that_comes_back_after_its_mode_was_taken_back_is_a_rescue():
    played = run(("none", line(3, 2)), ("topk", line(2, 4)), ("none", line(4, 1)))
    found = harmful.rescue_of(played, "loss 2 before it, 4 after")
    assert found.tried_s == 30.5
    assert found.back_s == 60.5
    assert 80 < found.returned_s < 90
    assert [check.holds for check in harmful.checks([found], [])] == [True]


def test_a_loss_that_stays_up_a_guard_that_says_nothing_and_a_mode_never_tried_are_none():
    stays = run(("none", line(3, 2)), ("topk", line(2, 4)), ("none", line(4, 3)))
    back = run(("none", line(3, 2)), ("topk", line(2, 4)), ("none", line(4, 1)))
    never = run(("none", line(3, 1)))
    found = [(stays, "hurt"), (back, ""), (never, "")]
    rescues = [harmful.rescue_of(played, verdict) for played, verdict in found]
    assert math.isinf(rescues[2].tried_s)
    assert [check.holds for check in harmful.checks(rescues, [])] == [False, False, False]


def test_a_mode_that_does_no_harm_without_a_guard_shows_nothing():
    harms = run(("none", line(3, 2, 78)), ("topk", line(2, 4)))
    helps = run(("none", line(3, 2, 78)), ("topk", line(2, 1)))
    assert [check.holds for check in harmful.checks([], [harms, helps])] == [True, False]
