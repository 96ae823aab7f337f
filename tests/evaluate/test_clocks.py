"""Scores that depend only on time have no skill where failures do not depend on time.

The failures of every node are a Poisson process of the same rate throughout. What is seen of
them is not: a trace ends, nodes are drained or taken away in numbers, labels are in doubt.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from tests.evaluate.traces import FOREVER_NS, HOUR_NS, drain, event, hours, task, watched
from torchloom_core.lab.evaluate.forecasts.alarms import Judged, threshold_for
from torchloom_core.lab.evaluate.forecasts.backtest_forecasts import random_scores
from torchloom_core.lab.evaluate.forecasts.labels import incidents, outcomes
from torchloom_core.lab.evaluate.forecasts.scores import score
from torchloom_core.lab.learning.forecast_score import FEW
from torchloom_core.lab.learning.skill import with_verdict
from torchloom_core.lab.trace.bundle.schema import Component

DAY_H = 24
DAYS, CUT, NODES = 120, 72, 120
WEEK = task(7 * DAY_H)
FLEET = watched(NODES)
RATE_PER_DAY = 0.015

MOST = tuple(name for row, name in enumerate(FLEET.ids) if row % 10)
THEN_D = 100
"""When most nodes are drained, taken away or have an odd event."""


@dataclass(frozen=True)
class Seen:
    """What there is to be seen of the failures, which are the same in all of them."""

    events: tuple = ()
    actions: tuple = ()
    topology: tuple = ()


@cache
def failures():
    random = np.random.default_rng(1)
    counts = random.poisson(RATE_PER_DAY * DAYS, NODES)
    at_h = [np.sort(random.uniform(0, DAY_H * DAYS, count)) for count in counts]
    return tuple(
        event(name, start, start + 0.1)
        for name, starts in zip(FLEET.ids, at_h, strict=True)
        for start in starts
    )


def whole():
    return Seen(failures())


def drained():
    """Most nodes are drained for a day, all at once."""
    actions = tuple(drain(name, DAY_H * THEN_D, DAY_H * (THEN_D + 1)) for name in MOST)
    return Seen(failures(), actions)


def taken_away():
    """Most nodes are taken away, all at once."""
    then_ns = DAY_H * THEN_D * HOUR_NS
    topology = tuple(Component(id=name, kind="node", until_ns=then_ns) for name in MOST)
    there = [e for e in failures() if e.t_event < then_ns or e.component not in MOST]
    return Seen(tuple(there), topology=topology)


def doubted():
    """Most nodes have an unexplained event at the same time."""
    odd = tuple(event(name, DAY_H * THEN_D, label="uncertain", id=name) for name in MOST)
    return Seen((*failures(), *odd))


PART = {"whole": whole, "drained": drained, "taken away": taken_away, "doubted": doubted}


def planted(seen):
    """Return scores by the day that know what one can know without looking at a node."""
    day = np.arange(DAYS)
    reported_ns = np.sort([one.t_event for one in seen.events])
    records = np.searchsorted(reported_ns, day * DAY_H * HOUR_NS)
    prevalence = records / np.maximum(day, 1) / NODES * 7
    return {
        "the day's number": day,
        "the day's number, backwards": -day,
        "time since start": day * 86_400.0,
        "records so far": records,
        "the week before something": (day >= THEN_D - 7) & (day < THEN_D),
        "a constant": np.full(DAYS, 0.3),
        "the prevalence so far": prevalence,
        "the prevalence": np.full(DAYS, prevalence[CUT]),
    }


def judged(seen, values, from_d, until_d, known_d=None):
    known_ns = FOREVER_NS if known_d is None else known_d * DAY_H * HOUR_NS
    times_ns = hours(DAY_H * DAYS, DAY_H)[from_d:until_d]
    came = outcomes(
        seen.events,
        seen.actions,
        FLEET,
        times_ns,
        WEEK,
        known_until_ns=known_ns,
        span=(0, DAY_H * DAYS * HOUR_NS),
        topology=seen.topology,
    )
    found = incidents(seen.events, FLEET, WEEK, known_until_ns=known_ns)
    return Judged(WEEK, times_ns, 86_400.0, values[from_d:until_d], came, found)


def scored(seen, values):
    """Set the threshold on the time before the cut, and score the rest."""
    earlier = judged(seen, values, 0, CUT - 7, known_d=CUT)
    later = judged(seen, values, CUT, DAYS)
    return with_verdict(
        score(
            later,
            predictor="planted",
            threshold=threshold_for(earlier, 0.01),
            threshold_from="the time before",
            others={"random": random_scores(later.score.shape, 0)},
        )
    )


@pytest.mark.parametrize("part", PART)
@pytest.mark.parametrize("name", planted(whole()))
def test_a_score_that_depends_only_on_time_has_no_skill(name, part):
    seen = PART[part]()
    found = scored(seen, np.repeat(planted(seen)[name][:, None] * 1.0, NODES, axis=1))
    assert found.incidents >= FEW
    assert found.verdict == "no skill", found.skill
