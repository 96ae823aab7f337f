"""Whether a change was rolled back by a guard or set back by a person."""

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
        tracker.propose({"compression": mode}, "better", 0.0, now_s - 1.0)
        look(tracker, mode, now_s)
        assert tracker.just_landed
    return tracker


@pytest.mark.parametrize("mode", ["int8", "none"])
def test_a_return_to_the_values_before_a_guarded_change_is_a_rollback(landed, mode):
    back = look(landed, mode, 50.5)
    assert back.values == {"compression": "topk"}


def test_a_new_mode_is_set_by_a_person(landed):
    assert look(landed, "bf16", 30.0) is None


def test_a_return_after_the_guards_window_is_set_by_a_person(landed):
    assert look(landed, "int8", 20.0 + 1.6 * WINDOW_S) is None


def test_a_change_outside_its_guards_window_is_not_rolled_back(landed):
    assert look(landed, "none", 10.0 + 1.6 * WINDOW_S) is None
