"""Which ends of a process were intended, and their texts."""

import pytest

from torchloom_core.wire.endings import in_a_word, is_intended, is_own_end
from torchloom_core.wire.messages import Exit
from torchloom_core.wire.notices import of_exit


@pytest.mark.parametrize("status", [0, -2, -15, 130, 143])
def test_the_end_of_the_loop_and_a_termination_signal_are_intended(status):
    assert is_intended(status, parted=False, error="")
    assert not is_intended(status, parted=True, error="ValueError: the loss is gone")


@pytest.mark.parametrize("status", [1, 2, -9, -6, -11, 137, 139])
def test_a_crash_and_a_kill_are_not_intended(status):
    assert not is_intended(status, parted=True, error="")


def test_without_a_status_the_trainers_own_report_counts():
    assert is_intended(None, parted=True, error="")
    assert not is_intended(None, parted=False, error="")


def test_a_run_ends_normally_by_its_loop_or_ctrl_c_but_not_by_sigterm():
    assert [s for s in (0, None, -2, 130, -15, 143) if is_own_end(s, expected=True)] == [
        0, None, -2, 130,
    ]  # fmt: skip
    assert not is_own_end(None, expected=False)


def test_a_notice_of_an_exit_names_the_worker_the_step_and_the_error():
    end = Exit(run="run", worker="g0-0", incarnation=1, status=1, expected=False, error="E: no")
    assert of_exit(end).text == "g0-0 ended with status 1 before its first step: E: no"
    assert of_exit(end).kind == "fault"


def test_an_exception_with_unknown_status_is_a_failure():
    assert in_a_word(None, expected=False, error="ValueError: the loss is gone") == "failed"
