"""A kind of event, or being new, that comes to none but those that fail is flagged, few are not."""

import numpy as np
import pytest
from msgspec.structs import replace

from tests.evaluate.traces import HOUR_NS, event, task, watched
from torchloom_core.clock import SECOND_NS
from torchloom_core.evaluate.forecasts.leaky_events import leaky_kinds
from torchloom_core.evaluate.forecasts.leaky_service import leaky_service
from torchloom_core.learning.features import AT_ONCE_S

DAY_NS = 24 * HOUR_NS
ROWS = 40
FAILED_NS = np.where(np.arange(ROWS) < 20, 100.0 * HOUR_NS, np.nan)


def notes(kind, rows, at_h=40, **more):
    return [event(f"n{row:05}", at_h, kind=kind, fatal=False, **more) for row in rows]


TICKETS = notes("ticket", range(20))
FLAG = (
    "leaky_column: ticket: such events came to 20 of 20 components before they failed and to "
    "0 of 20 that did not"
)


def kinds(events, failed_ns=FAILED_NS, of=None, begin_h=0, **more):
    of = of or task(24)
    spans = {"step_ns": HOUR_NS, "begin_ns": begin_h * HOUR_NS, "end_ns": 120 * HOUR_NS}
    return leaky_kinds(events, watched(len(failed_ns)), of, failed_ns, **spans, **more)


def test_a_kind_that_comes_to_all_that_fail_and_to_no_others_is_flagged():
    assert kinds(TICKETS) == (FLAG,)
    assert kinds(TICKETS, known_before=["ticket"]) == ()
    (flag,) = kinds(TICKETS, np.r_[FAILED_NS, [np.nan] * 5])
    assert flag.endswith("20 of 20 components before they failed and to 0 of 25 that did not")


def test_what_is_to_be_told_itself_is_not_asked_about():
    assert kinds(TICKETS, of=task(24, kinds=("ticket",))) == ()
    assert kinds(TICKETS, of=task(24, kind="detect", kinds=("crash",))) == (FLAG,)
    assert kinds(TICKETS, of=task(24, kind="detect")) == ()


@pytest.mark.parametrize(("at_h", "flags"), [(98.9, 1), (99, 0), (101, 0)])
def test_what_comes_within_a_step_of_the_failure_or_after_it_is_no_forecast(at_h, flags):
    assert len(kinds(notes("ticket", range(20), at_h))) == flags
    assert len(kinds(notes("ticket", range(20), known_h=at_h))) == flags


def test_a_warning_that_is_often_wrong_or_often_does_not_come_is_none_of_those():
    assert kinds(notes("ticket", range(23))) == ()
    (flag,) = kinds(notes("ticket", range(22)))
    assert " came to 20 of 20 components before they failed and to 2 of 20 " in flag
    assert kinds(TICKETS[:17]) == ()


@pytest.mark.parametrize(
    ("again_h", "others", "flags"), [(85.9, 2, 1), (85.9, 3, 0), (86, 2, 0), (90, 2, 0)]
)
def test_how_often_it_comes_is_counted_in_two_thirds_of_the_time_to_the_failure(
    again_h, others, flags
):
    """That is 39 hours here; of those that did not fail, two of twenty may come as often."""
    events = notes("check", range(ROWS), at_h=70)
    events += notes("check", range(20), at_h=again_h) + notes("check", range(20, 20 + others))
    flag = (
        "leaky_column: check: how many such events came in the first two thirds of its time "
        "tells the 20 components that failed from the others, area under the ROC curve 0.950"
    )
    assert kinds(events, begin_h=60) == (flag,) * flags


def incidents(count, kind, late_s=0):
    return [
        event(f"n{row % ROWS:05}", 10 * (row // ROWS) + 5 + late_s / 3600, kind=kind, fatal=False,
              id=f"{kind} {row}")
        for row in range(count)
    ]  # fmt: skip


def test_a_kind_that_begins_with_what_is_to_be_detected_is_flagged_in_a_detection():
    detect = task(24, kind="detect", kinds=("down",))
    none_failed = np.full(ROWS, np.nan)
    flag = (
        "leaky_column: ticket: 200 of 200 such events began with one that is to be detected, "
        "and so did 200 of 200 of those"
    )
    both = incidents(200, "down") + incidents(200, "ticket", 30)
    assert kinds(both, none_failed, detect) == (flag,)
    assert kinds(both, none_failed, detect, known_before=["ticket"]) == ()
    assert kinds(both, none_failed, task(24, kinds=("down",))) == ()
    assert kinds(incidents(200, "down") + incidents(180, "ticket"), none_failed, detect) == ()
    assert kinds(incidents(180, "down") + incidents(200, "ticket"), none_failed, detect) == ()
    assert kinds(incidents(200, "down") + incidents(200, "ticket", 90), none_failed, detect) == ()


@pytest.mark.parametrize(
    ("down", "tickets", "met", "flags"),
    [(20, 20, 20, 1), (19, 19, 19, 0), (200, 190, 190, 1), (200, 189, 189, 0), (190, 200, 190, 1),
     (189, 200, 189, 0)],
)  # fmt: skip
def test_nineteen_of_twenty_of_each_and_twenty_in_all_are_enough(down, tickets, met, flags):
    detect = task(24, kind="detect", kinds=("down",))
    both = incidents(down, "down") + incidents(tickets, "ticket")
    flag = (
        f"leaky_column: ticket: {met} of {tickets} such events began with one that is to be "
        f"detected, and so did {met} of {down} of those"
    )
    assert kinds(both, np.full(ROWS, np.nan), detect) == (flag,) * flags


def test_what_is_noted_of_a_rack_begins_with_what_is_to_be_detected_of_each_of_it():
    detect = task(24, kind="detect", kinds=("down",))
    tickets = notes("ticket", [0] * 20, at_h=5)
    of_rack = [replace(one, component="rack") for one in tickets]
    (flag,) = kinds(incidents(40, "down") + of_rack, np.full(ROWS, np.nan), detect)
    assert flag.endswith("20 of 20 such events began with one that is to be detected, and so did "
                         "40 of 40 of those")  # fmt: skip


def test_what_comes_to_all_or_to_none_that_fail_tells_of_nobody():
    assert kinds(notes("born", range(ROWS))) == ()
    assert kinds(notes("fine", range(20, ROWS))) == ()
    assert kinds(TICKETS, np.where(np.arange(ROWS) < 19, FAILED_NS, np.nan)) == ()


# --- time in service ---


def service(began_d, ended_d, failed_d, tick_ns=DAY_NS):
    """Return the flags of a trace of 120 days."""
    days = [DAY_NS * np.array(one, dtype=float) for one in (began_d, ended_d, failed_d)]
    return leaky_service(*days, middle_ns=60 * DAY_NS, tick_ns=tick_ns)


def extract(came_d, stay_d, old, new, old_failures=0, on_day=90.0):
    """Return the flags of ``old`` from the start, and of ``new`` that come and fail.

    So many of the old ones fail on one day.
    """
    came = np.r_[np.zeros(old), came_d + (np.arange(new) % 10) * (came_d >= 1)]
    failed = np.full(old + new, np.nan)
    failed[:old_failures] = on_day
    failed[old:] = came[old:] + stay_d
    return service(came, np.where(np.isnan(failed), 119.0, failed), failed)


def test_an_extract_in_which_none_but_new_ones_fail_is_flagged():
    assert extract(50, 30, old=100, new=40) == (
        "leaky_column: time in service: 40 of 40 components that came later failed in the "
        "second half, 0 of 100 that were there from the start",
    )


def test_that_old_ones_failed_before_they_were_lost_to_it_does_not_count():
    (flag,) = extract(50, 30, old=120, new=40, old_failures=20, on_day=30.0)
    assert flag.endswith("0 of 120 that were there from the start")


def test_where_old_ones_fail_too_or_there_are_few_of_them_nothing_is_said():
    assert extract(50, 30, old=100, new=40, old_failures=20) == ()
    assert extract(50, 30, old=10, new=40) == ()
    assert extract(50, 30, old=100, new=19) == ()
    assert extract(10, 30, old=100, new=40) == ()  # all over in the first half
    assert extract(0.05, 90, old=100, new=40) == ()  # some hours late is from the start


@pytest.mark.parametrize(
    ("tick_ns", "start_ns"), [(DAY_NS, 1.5 * DAY_NS), (SECOND_NS, AT_ONCE_S * SECOND_NS)]
)
def test_who_came_within_a_tick_and_a_half_or_at_once_was_there_from_the_start(tick_ns, start_ns):
    for late_ns, flags in ((0, 0), (1, 1)):
        came = np.r_[np.zeros(100), np.full(40, (start_ns + late_ns) / DAY_NS)]
        failed = np.r_[np.full(100, np.nan), np.full(40, 90.0)]
        assert len(service(came, np.fmin(failed, 119.0), failed, tick_ns)) == flags


@pytest.mark.parametrize(("old", "flags"), [(6, 0), (10, 1)])
def test_who_was_gone_before_the_second_half_was_not_watched_in_it(old, flags):
    came = np.r_[np.zeros(old), np.full(20, 20.0), np.full(20, 50.0)]
    ended = np.r_[np.full(old, 119.0), np.full(20, 30.0), np.full(20, 70.0)]
    failed = np.r_[np.full(old + 20, np.nan), np.full(20, 70.0)]
    assert len(service(came, ended, failed)) == flags


@pytest.mark.parametrize(("came_d", "failed_d"), [(50, 60), (70, 70)])
def test_twenty_failures_are_enough_of_which_some_are_in_the_middle_or_as_they_came(
    came_d, failed_d
):
    came = np.r_[np.zeros(100), np.full(10, 50.0), np.full(10, came_d)]
    failed = np.r_[np.full(100, np.nan), np.full(10, 80.0), np.full(10, failed_d)]
    assert len(service(came, np.fmin(failed, 119.0), failed)) == 1


def test_of_who_fail_as_they_come_and_of_nobody_nothing_is_said():
    assert extract(70, 0, old=100, new=40) == ()
    assert service([], [], []) == ()
    assert service(*[[np.nan] * 3] * 3) == ()
