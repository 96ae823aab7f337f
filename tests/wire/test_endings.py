"""Which ends of a process were meant, and how they are told."""

import pytest

from torchloom_core.wire.endings import in_a_word, is_intended, is_own_end
from torchloom_core.wire.messages import Exit
from torchloom_core.wire.notices import of_exit


@pytest.mark.parametrize("status", [0, -2, -15, 130, 143])
def test_a_loop_that_is_over_and_a_signal_that_asks_for_the_end_are_meant(status):
    assert is_intended(status, parted=False, error="")
    assert not is_intended(status, parted=True, error="ValueError: the loss is gone")


@pytest.mark.parametrize("status", [1, 2, -9, -6, -11, 137, 139])
def test_a_crash_and_a_kill_are_not(status):
    assert not is_intended(status, parted=True, error="")


def test_of_an_end_that_nobody_saw_the_trainers_own_word_counts():
    assert is_intended(None, parted=True, error="")
    assert not is_intended(None, parted=False, error="")


def test_a_run_ends_of_its_own_by_its_loop_or_ctrl_c_and_not_by_what_may_start_it_again():
    assert [s for s in (0, None, -2, 130, -15, 143) if is_own_end(s, expected=True)] == [
        0, None, -2, 130,
    ]  # fmt: skip
    assert not is_own_end(None, expected=False)


def test_a_notice_of_an_exit_names_the_worker_the_step_and_the_error():
    end = Exit(run="run", worker="g0-0", incarnation=1, status=1, expected=False, error="E: no")
    assert of_exit(end).text == "g0-0 ended with status 1 before its first step: E: no"
    assert of_exit(end).kind == "fault"


def test_an_end_by_an_exception_of_which_nobody_saw_the_status_is_a_failure():
    assert in_a_word(None, expected=False, error="ValueError: the loss is gone") == "failed"
