"""A kind of event, or a late start, that only failing components have is flagged."""

from types import SimpleNamespace

import numpy as np

from tests.evaluate.histories import DAY_NS, history
from tests.evaluate.traces import HOUR_NS, event, task, watched
from torchloom_core.lab.evaluate.forecasts.leaks import leaky_kinds, leaky_service

ROWS = 40
FAILED_NS = np.where(np.arange(ROWS) < 20, 100.0 * HOUR_NS, np.nan)


def notes(kind, rows, at_h=40, **more):
    return [event(f"n{row:05}", at_h, kind=kind, fatal=False, **more) for row in rows]


TICKETS = notes("ticket", range(20))
FLAG = (
    "ticket: such events occurred on 20 of 20 components before they failed and on 0 of 20 others"
)


def trace(events, rows, *, end_ns=120 * HOUR_NS):
    """Return a bundle of so many watched components."""
    manifest = SimpleNamespace(start_ns=0, end_ns=end_ns)
    return SimpleNamespace(manifest=manifest, events=lambda: events, once=lambda *_: watched(rows))


def kinds(events, failed_ns=FAILED_NS, of=None):
    failed = history(failed_d=failed_ns / DAY_NS)
    bundle = trace(events, len(failed_ns))
    return [
        f"{kind}: {why}"
        for kind, why in leaky_kinds(bundle, of or task(24), failed, step_ns=HOUR_NS)
    ]


def test_a_kind_of_event_on_exactly_the_failing_components_is_flagged():
    assert kinds(TICKETS) == [FLAG]
    (flag,) = kinds(TICKETS, np.r_[FAILED_NS, [np.nan] * 5])
    assert flag.endswith("20 of 20 components before they failed and on 0 of 25 others")


def test_the_target_events_are_not_checked():
    assert kinds(TICKETS, of=task(24, kinds=("ticket",))) == []
    assert kinds(TICKETS, of=task(24, kind="detect", kinds=("crash",))) == [FLAG]
    assert kinds(TICKETS, of=task(24, kind="detect")) == []


def test_a_warning_that_is_often_wrong_or_missing_is_not_flagged():
    assert kinds(notes("ticket", range(23))) == []
    (flag,) = kinds(notes("ticket", range(22)))
    assert " occurred on 20 of 20 components before they failed and on 2 of 20 " in flag
    assert kinds(TICKETS[:17]) == []


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
        "ticket: 200 of 200 such events coincide with the start of an incident "
        "to detect, and 200 of 200 such incidents have one"
    )
    both = incidents(200, "down") + incidents(200, "ticket", 30)
    assert kinds(both, none_failed, detect) == [flag]
    assert kinds(both, none_failed, task(24, kinds=("down",))) == []
    assert kinds(incidents(200, "down") + incidents(180, "ticket"), none_failed, detect) == []
    assert kinds(incidents(180, "down") + incidents(200, "ticket"), none_failed, detect) == []
    assert kinds(incidents(200, "down") + incidents(200, "ticket", 90), none_failed, detect) == []


def test_events_on_all_or_on_no_failing_components_are_not_flagged():
    assert kinds(notes("born", range(ROWS))) == []
    assert kinds(notes("fine", range(20, ROWS))) == []
    assert kinds(TICKETS, np.where(np.arange(ROWS) < 19, FAILED_NS, np.nan)) == []


# --- time in service ---


def service(came_d, ended_d, failed_d, tick_ns=DAY_NS):
    """Return the flags of a trace of 120 days."""
    of = history(began_d=came_d, ended_d=ended_d, failed_d=failed_d)
    return leaky_service(trace((), 0, end_ns=120 * DAY_NS), of, tick_ns=tick_ns)


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
    assert extract(50, 30, old=100, new=40) == [
        (
            "time in service",
            "40 of 40 components that start later failed in the second half, "
            "0 of 100 present from the start",
        )
    ]


def test_no_flag_if_old_components_fail_too_or_are_few():
    assert extract(50, 30, old=100, new=40, old_failures=20) == []
    assert extract(50, 30, old=10, new=40) == []
    assert extract(50, 30, old=100, new=19) == []
    assert extract(10, 30, old=100, new=40) == []  # all over in the first half
    assert extract(0.05, 90, old=100, new=40) == []  # some hours late is from the start
