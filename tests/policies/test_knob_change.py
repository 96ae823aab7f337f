"""Who has taken a change back: a guard, or somebody else."""

import pytest

from torchloom_policies.allreduce.knob_change import ChangeTracker

WINDOW_S = 30.0


def look(tracker, mode, now_s):
    return tracker.look({"compression": mode}, int(now_s), now_s, 0.5, WINDOW_S)


@pytest.fixture
def landed():
    """A change from none to int8 at 10 s, and on to topk at 20 s."""
    tracker = ChangeTracker(3)
    look(tracker, "none", 0.0)
    for now_s, mode in ((10.0, "int8"), (20.0, "topk")):
        tracker.ask({"compression": mode}, "better", 0.0, now_s - 1.0)
        look(tracker, mode, now_s)
        assert tracker.just_landed
    return tracker


@pytest.mark.parametrize("mode", ["int8", "none"])
def test_what_was_before_one_of_the_changes_that_are_watched_is_a_guards_doing(landed, mode):
    back = look(landed, mode, 50.5)
    assert back.values == {"compression": "topk"}


def test_a_mode_that_was_not_before_is_a_persons_doing(landed):
    assert look(landed, "bf16", 30.0) is None


def test_what_is_set_back_once_no_guard_watches_any_more_is_a_persons_doing(landed):
    assert look(landed, "int8", 20.0 + 1.6 * WINDOW_S) is None


def test_a_guard_of_a_change_that_is_no_longer_watched_takes_nothing_back(landed):
    assert look(landed, "none", 10.0 + 1.6 * WINDOW_S) is None
