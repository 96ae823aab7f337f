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
    assert [check.holds for check in harmful.checks([found], [stays_up()])] == [True, True]


def stays_up():
    """Return what became of a run whose loss the mode keeps high."""
    return harmful.rescue_of(run(("none", line(3, 2)), ("topk", line(2, 4))), "")


def test_a_loss_that_stays_up_a_guard_that_says_nothing_and_a_mode_never_tried_are_none():
    stays = run(("none", line(3, 2)), ("topk", line(2, 4)), ("none", line(4, 3)))
    back = run(("none", line(3, 2)), ("topk", line(2, 4)), ("none", line(4, 1)))
    never = run(("none", line(3, 1)))
    found = [(stays, "hurt"), (back, ""), (never, "")]
    rescues = [harmful.rescue_of(played, verdict) for played, verdict in found]
    assert math.isinf(rescues[2].tried_s)
    checks = harmful.checks(rescues, [stays_up()] * 3)
    assert [check.holds for check in checks[::2]] == [False, False, False]


def test_a_mode_that_does_no_harm_without_a_guard_shows_nothing():
    parts = ("none", line(3, 2)), ("topk", line(2, 4))
    guarded = harmful.rescue_of(run(*parts, ("none", line(4, 1))), "hurt")
    sooner = harmful.rescue_of(run(*parts, ("topk", line(4, 1, 40))), "")
    later = harmful.rescue_of(run(*parts, ("topk", line(4, 1, 120))), "")
    assert [harmful.checks([guarded], [alone])[1].holds for alone in (sooner, later)] == [
        False,
        True,
    ]
