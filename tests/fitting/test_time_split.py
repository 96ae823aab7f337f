"""Learning, calibration and score are a horizon apart, and too little time is refused with help."""

import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.evaluate.traces import HOUR_NS, drain, event, write_bundle
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.evaluate.forecasts.labels import Task
from torchloom_core.lab.fitting.time_split import EarlierPart, split
from torchloom_core.lab.trace.bundle.bundle import DerivedBundle
from torchloom_core.lab.trace.bundle.schema import Component

DAY_NS = 24 * HOUR_NS
DAY_S = 86_400.0
FIRST = 7.25
"""The day on which each trace begins: a length of time is none since 1970."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_bundle(tmp_path_factory.mktemp("t") / "t.tltrace", nodes=1, rate=0.0)[0]


def divided(whole, until, *, days=100.0, horizon=2.0, every=1.0):
    """Divide a trace; all in days since it began, but ``until`` may be nanoseconds."""
    start_ns = round(FIRST * DAY_NS)
    span = replace(whole.manifest, start_ns=start_ns, end_ns=start_ns + round(days * DAY_NS))
    # In microseconds, as the command line takes days: in ns a float is off by one or two.
    until_ns = start_ns + (until if isinstance(until, int) else 1000 * round(until * DAY_S * 1e6))
    task = Task(horizon_s=horizon * DAY_S, repair_s=DAY_S)
    return split(DerivedBundle(whole, span), task, until_ns=until_ns, every_s=every * DAY_S)


def days_of(part):
    stamps = (part.start_ns, part.first_until_ns, part.calibrated_from_ns,
              part.calibrated_until_ns, part.until_ns, part.end_ns)  # fmt: skip
    return [stamp / DAY_NS - FIRST for stamp in stamps]


def refused(whole, *args, **more):
    with pytest.raises(TraceError) as error:
        divided(whole, *args, **more)
    text = str(error.value)
    assert text.startswith(f"{whole.path}: need ")
    return text.removeprefix(f"{whole.path}: ")


def test_the_last_quarter_of_what_two_horizons_leave_is_to_calibrate_on(whole):
    assert days_of(divided(whole, 60.0)) == pytest.approx([0, 42, 44, 58, 60, 100])


def test_calibration_begins_at_a_forecast_moment(whole):
    found = days_of(divided(whole, 60.0, every=0.7))
    assert found == pytest.approx([0, 41.4, 43.4, 58, 60, 100])


@pytest.mark.parametrize("until", [0.0, -3.0, 100.0, 101.0])
def test_an_end_of_training_outside_of_the_trace_is_refused(whole, until):
    text = refused(whole, until)
    assert text.startswith("need --until within the 100 days of the trace, ")
    assert text.endswith(f", was day {until:g}")


@pytest.mark.parametrize(
    ("until_ns", "short"),
    [(8 * DAY_NS, ""), (8 * DAY_NS - 1, "before"), (97 * DAY_NS, ""), (97 * DAY_NS + 1, "after")],
)
def test_two_horizons_and_four_moments_before_and_one_of_each_after_are_enough(
    whole, until_ns, short
):
    if not short:
        divided(whole, until_ns)
    else:
        assert f" {short} --until" in refused(whole, until_ns)


BEFORE = "need two horizons and four moments before --until, "
AFTER = "need a horizon and a moment after --until, "
TO_97 = "or --until from 8d to 97d, or a longer trace"


@pytest.mark.parametrize(
    ("until", "more", "text"),
    [
        (7.0, {}, f"{BEFORE}8/2/7 d: use --option horizon_s=129600 or less, {TO_97}"),
        (98.0, {}, f"{AFTER}3/2/2 d: use --option horizon_s=86400 or less, {TO_97}"),
        (
            9.0,
            {"every": 30.0},
            f"{BEFORE}124/2/9 d: use --every-s and --tick-s of 172800 or less, or a longer trace",
        ),
        (
            2.0,
            {"horizon": 1.2345, "every": 0.1},
            f"{BEFORE}2.869/1.234/2 d: use --option horizon_s=69120 or less, or --until from "
            "2.87d to 98.66d, or a longer trace",
        ),
        (
            9.0,
            {"days": 11.0},
            f"{AFTER}3/2/2 d: use --option horizon_s=86400 or less, or a longer trace",
        ),
        (4.0, {}, f"{BEFORE}8/2/4 d: use {TO_97.removeprefix('or ')}"),
        (
            4 * DAY_NS + 2 * SECOND_NS,
            {},
            f"{BEFORE}8/2/4 d: use --option horizon_s=1 or less, {TO_97}",
        ),
        (
            4 * DAY_NS + 2 * SECOND_NS - 2,
            {},
            f"{BEFORE}8/2/4 d: use {TO_97.removeprefix('or ')}",
        ),
        (9.0, {"days": 10.0}, f"{AFTER}3/2/1 d: use a longer trace"),
    ],
)
def test_too_little_time_is_refused_with_what_would_help(whole, until, more, text):
    """The three numbers are days: needed, of the horizon, and what there was."""
    need, horizon, was = re.search(r"([\d.]+)/([\d.]+)/([\d.]+) d", text).groups()
    said = f"{need} d with a horizon of {horizon} d, was {was} d"
    assert refused(whole, until, **more) == text.replace(f"{need}/{horizon}/{was} d", said)


@settings(deadline=None)
@given(st.floats(1.0, 99.0), st.floats(0.1, 40.0), st.floats(0.01, 3.0))
def test_the_recommended_options_help(whole, until, horizon, every):
    try:
        divided(whole, until, horizon=horizon, every=every)
    except TraceError as error:
        text = str(error)
    else:
        text = ""
    assume(text)
    for found in re.findall(r"horizon_s=(\d+)", text):
        divided(whole, until, horizon=int(found) / DAY_S, every=every)
    for found in re.findall(r"from ([\d.]+)d to ([\d.]+)d", text):
        first, last = map(float, found)
        if first <= last:
            divided(whole, first, horizon=horizon, every=every)
            divided(whole, last, horizon=horizon, every=every)


@given(st.integers(40, 90), st.integers(1, 5), st.sampled_from([1, 2, 3, 8, 24]))
def test_between_the_last_moment_that_is_learned_from_and_the_score_lies_one(whole, until, h, per):
    part = divided(whole, float(until), horizon=float(h), every=h / per)
    every_ns = round(h / per * DAY_S) * SECOND_NS
    moments = range(part.start_ns + every_ns, part.until_ns, every_ns)
    unseen = [moment for moment in moments if moment > part.fitted_until_ns]
    assert 1 <= len(unseen) <= per
    assert (part.fitted_until_ns - part.start_ns) % every_ns == 0
    assert part.fitted_until_ns < part.calibrated_until_ns <= unseen[0] + every_ns


END_NS = 48 * HOUR_NS


@pytest.fixture
def four_days(tmp_path):
    heat = np.random.default_rng(0).random((4, 3))
    path = tmp_path / "t.tltrace"
    return write_bundle(path, days=4, nodes=3, rate=0.0, metrics={"heat": lambda _: heat})[0]


def times_h(tables):
    return sorted({at // HOUR_NS for table in tables for at in table["t_avail"].to_pylist()})


def test_events_known_before_the_end_are_included_and_those_at_it_are_not(four_days):
    before, late, at = (
        event("n00000", 1),
        event("n00001", 2, known_h=48),
        replace(event("n00002", 3), t_avail=END_NS - 1),
    )
    four_days.events = lambda: (before, late, at)
    four_days.actions = lambda: (drain("n00000", 48), drain("n00001", 47))
    part = EarlierPart(four_days, END_NS)
    assert part.events() == (before, at)
    assert part.actions() == (drain("n00001", 47),)
    assert part.manifest == replace(four_days.manifest, end_ns=END_NS)


@pytest.mark.parametrize(("end_h", "known"), [(47, True), (48, False), (60, False)])
def test_an_end_is_known_if_it_is_before_the_end_of_the_part(four_days, end_h, known):
    four_days.events = lambda: (event("n00000", 1, end_h), event("n00001", 1))
    four_days.actions = lambda: (drain("n00000", 1, end_h), drain("n00001", 1))
    there = Component(id="n00000", kind="node", until_ns=end_h * HOUR_NS)
    four_days.topology = lambda: (there, Component(id="n00001", kind="node"))
    part = EarlierPart(four_days, END_NS)
    wanted = (end_h * HOUR_NS if known else None, None)
    assert tuple(one.t_resolved for one in part.events()) == wanted
    assert tuple(one.t_end for one in part.actions()) == wanted
    assert tuple(one.until_ns for one in part.topology()) == wanted


def test_what_comes_later_is_not_there(four_days):
    starts = (None, 0, END_NS - 1, END_NS, END_NS + 1)
    four_days.topology = lambda: tuple(
        Component(id=f"n{number}", kind="node", from_ns=from_ns)
        for number, from_ns in enumerate(starts)
    )
    found = EarlierPart(four_days, END_NS).topology()
    assert [one.from_ns for one in found] == [None, 0, END_NS - 1]


def test_telemetry_ends_with_the_part(four_days):
    part = EarlierPart(four_days, END_NS)
    assert times_h(four_days.telemetry()) == [0, 24, 48, 72]
    assert times_h(part.telemetry()) == [0, 24]
    assert times_h(part.telemetry(1, 96 * HOUR_NS)) == [24]
    assert times_h(part.telemetry(0, 24 * HOUR_NS)) == [0]
    assert sum(map(len, part.telemetry(metrics=["cold"]))) == 0
