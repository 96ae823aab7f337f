"""Backtest forecasts are made at the predictor's interval, from data available at the time."""

import numpy as np
import pytest

from tests.evaluate.traces import HOUR_NS, HOUR_S, event, task, watched, write_bundle
from tests.trace.small import START_NS, at
from tests.trace.small import bundle as small_bundle
from torchloom_core.config.schema import Costs
from torchloom_core.floor.errors import PluginError
from torchloom_core.lab.evaluate.forecasts.backtest_forecasts import (
    BacktestForecasts,
    backtest_forecasts,
    backtest_forecasts_of_all,
    day_text,
    events_to_judge,
    judge,
    pace_s,
    refuse_too_many,
)
from torchloom_core.lab.trace.bundle.schema import Component
from torchloom_core.plugin import Hazard, Need, NeedFaults


class Stub:
    """Forecasts each node's number in tenths, except for the last; records its views."""

    name = "stub"
    horizon_s = 48 * HOUR_S

    def __init__(self, every_h=12, needs=(), says=None):
        self.every_s = every_h * HOUR_S
        self.needs = needs
        self.says = says
        self.views = []
        self.faults = set()

    def forecast(self, view):
        self.views.append((view.now_ns, view.costs))
        self.faults |= {*view.faults_of}
        number = np.array([int(worker[1:]) for worker in view.workers], dtype=float) / 10
        answer = np.where(number == 0.2, np.nan, number)
        return Hazard(probability=answer if self.says is None else np.full(len(view), self.says))


class Learns(Stub):
    Options = None

    def fit(self, examples):
        del examples

    def parts(self):
        return {}

    def restore(self, parts):
        del parts


class Spoils(Stub):
    def forecast(self, view):
        view.faults_of.clear()
        return super().forecast(view)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "t.tltrace"
    return write_bundle(path, days=4, nodes=3, rate=0.0, metrics={"heat": lambda f: 1.0 * f})[0]


def test_a_predictor_runs_at_its_own_interval_and_sees_the_prices(bundle):
    predictor, shares = Stub(), []
    costs = Costs(restart_s=7.0)
    answer = backtest_forecasts(
        bundle,
        predictor,
        tick_s=6 * HOUR_S,
        repair_s=24 * HOUR_S,
        costs=costs,
        progress=shares.append,
    )
    assert answer.times_ns.tolist() == [12 * HOUR_NS * n for n in range(1, 9)]
    assert predictor.views == [(ts_ns, costs) for ts_ns in answer.times_ns.tolist()]
    assert answer.every_s == 12 * HOUR_S
    assert answer.watched.ids == watched(3).ids
    assert np.array_equal(answer.score, [[0.0, 0.1, np.nan]] * 8, equal_nan=True)
    assert shares == [n / 8 for n in range(1, 9)]
    part = backtest_forecasts(
        bundle, Stub(), tick_s=6 * HOUR_S, repair_s=24 * HOUR_S, start_ns=24 * HOUR_NS,
        end_ns=72 * HOUR_NS, progress=shares.append,
    )  # fmt: skip
    assert (part.times_ns // HOUR_NS).tolist() == [36, 48, 60, 72]
    assert shares[8:] == [0.25, 0.5, 0.75, 1.0]


PACE = {"tick_s": 6 * HOUR_S, "repair_s": 24 * HOUR_S}


def knowing(bundle, *events):
    """Return the trace with these events."""
    other = type(bundle).open(bundle.path)
    other.events = lambda: events
    return other


def test_visible_events_do_not_depend_on_other_predictors(bundle):
    trace_with_faults = knowing(
        bundle, event("n00001", 60, 61), event("n00002", 70, kind="hidden", fatal=False)
    )
    need = (NeedFaults(48 * HOUR_S),)
    first, second, third = Spoils(needs=need), Stub(needs=need), Stub(needs=need)
    backtest_forecasts_of_all(trace_with_faults, [first, second], **PACE)
    backtest_forecasts(trace_with_faults, third, shows=lambda one: one.kind != "hidden", **PACE)
    assert (first.faults, second.faults) == (set(), {"n00001", "n00002"})
    assert third.faults == {"n00001"}


def test_forecast_times_are_within_the_trace(tmp_path):
    late = small_bundle(tmp_path / "t.tltrace", [Component(id="n0", kind="node")], seconds=10.0)
    answer = backtest_forecasts(late, Stub(every_h=1 / HOUR_S), tick_s=1.0, repair_s=5.0)
    assert ((answer.times_ns - START_NS) // 10**9).tolist() == [*range(1, 11)]
    assert day_text(late, START_NS + 36 * HOUR_NS) == "1.5 d"


@pytest.mark.parametrize(("every_h", "pace_h"), [(12, 12), (13, 12), (16, 18), (1, 6)])
def test_the_forecast_interval_is_whole_ticks(every_h, pace_h):
    assert pace_s(Stub(every_h), 6 * HOUR_S) == pace_h * HOUR_S


@pytest.mark.parametrize(
    ("from_h", "until_h", "found"), [(0, 9, [1, 2, 3]), (1, 3, [1, 2, 3]), (2, 2, [2]), (4, 9, [])]
)
def test_a_part_of_it_has_both_its_ends(from_h, until_h, found):
    score = np.array([[1.0], [2.0], [3.0]])
    answer = BacktestForecasts(watched(1), np.array([1, 2, 3]) * HOUR_NS, HOUR_S, score)
    part = answer.between(from_h * HOUR_NS, until_h * HOUR_NS)
    assert (part.times_ns // HOUR_NS).tolist() == part.score[:, 0].tolist() == found
    assert (part.watched.ids, part.every_s) == (answer.watched.ids, HOUR_S)
    assert answer.with_score(-score).score.tolist() == (-score).tolist()


@pytest.mark.parametrize(
    ("predictor", "cause"),
    [
        (Stub(says=np.nan), ""),
        (Stub(says=np.nan, needs=(Need("heat"), Need("cold"))), "; the trace has no cold"),
        (Learns(says=np.nan), "; it may need a model from `torchloom fit`"),
        (
            Stub(says=np.nan, needs=(Need("heat", window_s=24 * HOUR_S),)),
            "; its longest window is 86400 s, and samples are 21600 s apart",
        ),
    ],
)
def test_one_that_never_judges_is_refused_with_the_likely_cause(bundle, predictor, cause):
    with pytest.raises(PluginError) as caught:
        backtest_forecasts(bundle, predictor, tick_s=6 * HOUR_S, repair_s=24 * HOUR_S)
    assert str(caught.value) == (
        "predictor stub: need a probability of some worker at some time, was none in 8 views"
        + cause
    )


def test_one_that_breaks_its_contract_is_refused_by_name(bundle):
    with pytest.raises(PluginError, match=r"^predictor stub: garbage: need probabilities in"):
        backtest_forecasts(bundle, Stub(says=2.0), tick_s=6 * HOUR_S, repair_s=24 * HOUR_S)


def test_a_backtest_requests_no_reasons(bundle):
    class Explains(Stub):
        def forecast(self, view):
            return Hazard(probability=np.full(len(view), 0.5), why={len(view): "of nobody"})

    assert (backtest_forecasts(bundle, Explains(), **PACE).score == 0.5).all()


def test_at_most_a_hundred_million_forecasts_are_stored():
    refuse_too_many("p", 10**8 * 10**9, 2.0, 2)
    with pytest.raises(PluginError) as caught:
        refuse_too_many("p", (10**8 + 2) * 10**9, 2.0, 2)
    assert str(caught.value) == (
        "predictor p: need at most 100000000 forecasts, was 50000001 times for 2 components: "
        "raise every_s, was 2"
    )


def test_too_many_forecasts_are_refused_before_the_first(bundle):
    predictor = Stub(every_h=0.005 / 3600)
    with pytest.raises(PluginError, match="need at most 100000000 forecasts, was"):
        backtest_forecasts(bundle, predictor, tick_s=0.005, repair_s=86_400.0)
    assert predictor.views == []


@pytest.mark.parametrize(("known_h", "positives"), [(None, 4), (90, 4), (59, 0)])
def test_outcomes_are_those_known_at_the_time(bundle, known_h, positives):
    trace_with_faults = knowing(bundle, event("n00001", 60, 61))
    answer = backtest_forecasts(trace_with_faults, Stub(), tick_s=6 * HOUR_S, repair_s=24 * HOUR_S)
    until_ns = None if known_h is None else known_h * HOUR_NS
    judged = judge(trace_with_faults, answer, task(48), known_until_ns=until_ns)
    assert np.count_nonzero(judged.outcome[:, 1] == 1.0) == positives - (known_h == 90)
    assert len(judged.incidents.row) == (positives > 0)
    assert judged.every_s == 12 * HOUR_S
    assert judged.score is answer.score


def test_an_absent_component_is_not_scored(bundle):
    gone = knowing(bundle)
    ends_ns = [None, 84 * HOUR_NS, None]
    nodes = zip(watched(3).ids, ends_ns, strict=True)
    parts = [Component(id=name, kind="node", until_ns=end_ns) for name, end_ns in nodes]
    gone.topology = lambda: parts
    judged = judge(gone, backtest_forecasts(gone, Stub(), **PACE), task(24))
    assert np.flatnonzero(np.isnan(judged.outcome[:, 1])).tolist() == [4, 5, 6, 7]
    assert np.flatnonzero(np.isnan(judged.outcome[:, 0])).tolist() == [6, 7]


def test_a_silent_component_is_not_scored(tmp_path):
    samples = [(t_h * HOUR_S, node, "x", 1.0) for t_h in range(240) for node in ("n0", "n1")]
    samples = [one for one in samples if one[1] == "n0" or one[0] < 120 * HOUR_S]
    trace = small_bundle(tmp_path / "t.tltrace", (), samples, seconds=240 * HOUR_S)
    judged = judge(trace, backtest_forecasts(trace, Stub(), **PACE), task(12))
    assert np.isnan(judged.outcome).sum(axis=0).tolist() == [1, 10]
    early = judge(
        trace,
        backtest_forecasts(trace, Stub(), **PACE),
        task(12),
        known_until_ns=at(130 * HOUR_S),
    )
    assert (~np.isnan(early.outcome)).sum(axis=0).tolist() == [9, 9]


@pytest.mark.parametrize(("kind", "until_ns"), [("forecast", 96 * HOUR_NS + 1), ("detect", None)])
def test_a_failed_component_is_away_until_it_reports_except_in_a_detection(bundle, kind, until_ns):
    (found,) = events_to_judge(
        knowing(bundle, event("n00001", 60)), watched(3), task(24, kind=kind)
    )
    assert found.t_resolved == until_ns
