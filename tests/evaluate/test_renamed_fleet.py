"""A score that depends only on the reporting names has no skill."""

import numpy as np

from tests.trace.small import at, bundle, fault
from torchloom_core.lab.evaluate.forecasts.alarms import threshold_for
from torchloom_core.lab.evaluate.forecasts.backtest_forecasts import (
    BacktestForecasts,
    judge,
    random_scores,
)
from torchloom_core.lab.evaluate.forecasts.labels import Task
from torchloom_core.lab.evaluate.forecasts.scores import score
from torchloom_core.lab.learning.skill import RANDOM, with_verdict
from torchloom_core.lab.trace.feed.watched import watch

DAY_S = 86_400
DAYS, RENAMED, NODES = 160, 100, 250


def draw_components(random):
    """Yield each name with the days on which it reports, and that on which it fails, if it does."""
    for node in range(NODES):
        for name, began, ended in ((f"old{node}", 0, RENAMED), (f"new{node}", RENAMED, DAYS)):
            failed = int(began + random.exponential(250))
            yield name, range(began, max(began + 1, min(failed, ended))), failed < ended and failed


def test_noise_has_no_skill_on_a_fleet_with_all_nodes_renamed(tmp_path):
    random = np.random.default_rng(0)
    components = [*draw_components(random)]
    reports = [(day * DAY_S, name, "x", 1.0) for name, days, _ in components for day in days]
    failures = [fault(day * DAY_S + 3600, name) for name, _, day in components if day]
    trace = bundle(tmp_path / "t.tltrace", failures, reports, seconds=DAYS * DAY_S)
    watched, task = watch(trace), Task(horizon_s=7.0 * DAY_S, repair_s=1.0 * DAY_S)
    days_of = {name: days for name, days, _ in components}

    def judged(days, **options):
        there = np.array([[day - 1 in days_of[name] for name in watched.ids] for day in days])
        message = np.where(there, random.random(there.shape), np.nan)
        times_ns = np.array([at(day * DAY_S) for day in days])
        return judge(trace, BacktestForecasts(watched, times_ns, DAY_S, message), task, **options)

    earlier = judged(range(1, RENAMED - 7), known_until_ns=at(RENAMED * DAY_S))
    later = judged(range(RENAMED, DAYS))
    found = with_verdict(
        score(
            later,
            predictor="noise",
            threshold=threshold_for(earlier, 0.01),
            threshold_from="the time before",
            others={RANDOM: random_scores(later.score.shape, 0)},
        )
    )
    assert found.incidents > 40
    assert found.skill.startswith(
        "No skill: AUPRC is not significantly above that of a random score"
    )
