"""Every planted leak is detected by name, and clean forecasts pass."""

import gzip

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace

from tests.evaluate.traces import HOUR_NS, HOUR_S, drain, event, judge, task, write_bundle
from torchloom_core.floor.errors import LeakError, TraceError
from torchloom_core.lab.evaluate.contradictions import refuse_contradicting
from torchloom_core.lab.evaluate.forecasts.alarms import flags_of, is_point_adjusted
from torchloom_core.lab.evaluate.forecasts.altered_future import refuse_future
from torchloom_core.lab.evaluate.forecasts.backtest_forecasts import (
    backtest_forecasts,
)
from torchloom_core.lab.evaluate.forecasts.external_scores import given_scores, score_given
from torchloom_core.lab.evaluate.forecasts.training_trace import refuse_trained
from torchloom_core.lab.fitting.examples import suspicious_features
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.plugin import Hazard, Need

DAY_NS = 24 * HOUR_NS
CUT = 60
"""First day that is scored; the horizon is two days."""

TOO_GOOD = "suspicious_score: AUPRC 1 is suspiciously high; look for a leak"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write_bundle(tmp_path_factory.mktemp("traces") / "t.tltrace", rate=0.03)[0]


@pytest.fixture
def table(bundle):
    """Honest forecasts, which depend on failures that were available before."""
    random = np.random.default_rng(3)
    count = np.zeros(20)
    rows = []
    events = iter(bundle.events())
    coming = next(events)
    for day in range(1, 118):
        while coming and coming.t_avail <= day * DAY_NS:
            count[int(coming.component[1:])] += 1
            coming = next(events, None)
        score = (count + random.random(20)) / (count.max() + 2)
        rows += [
            (day * DAY_NS, f"n{node:05}", float(value), "train" if day < CUT - 2 else "test")
            for node, value in enumerate(score)
            if not CUT - 2 <= day < CUT
        ]
    return pd.DataFrame(rows, columns=["t", "component", "score", "part"])


def scored(table, bundle, tmp_path, *, of=None, suffix="csv", name="mine"):
    path = tmp_path / f"scores.{suffix}"
    table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
    of = of or task(48)
    return score_given(
        name,
        given_scores(path, bundle, of, until_ns=CUT * DAY_NS),
        bundle,
        of,
        false_alarms_per_node_day=0.01,
    )


def refused(error, table, bundle, tmp_path, **more):
    with pytest.raises(error) as caught:
        scored(table, bundle, tmp_path, **more)
    text = str(caught.value)
    assert "\n" not in text
    return text.replace(str(tmp_path), "")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_clean_forecasts_are_scored_without_a_flag(table, bundle, tmp_path, suffix):
    found = scored(table, bundle, tmp_path, suffix=suffix)
    assert found.flags == ()
    assert found.incidents >= 20
    assert found.from_ns == CUT * DAY_NS
    assert found.threshold_from == "the training rows, before 60 d"
    assert found.auprc.value > 2 * found.prevalence
    assert "Suspicious" not in found.skill


def test_a_file_without_parts_is_split_in_time_with_an_embargo(table, bundle, tmp_path):
    found = scored(table.drop(columns="part"), bundle, tmp_path)
    assert found.from_ns == CUT * DAY_NS
    assert found.threshold_from == "before 60 d"
    assert found.flags == ()


def test_rows_split_at_random_are_refused(table, bundle, tmp_path):
    part = np.random.default_rng(0).choice(["train", "test"], len(table))
    text = refused(LeakError, table.assign(part=part), bundle, tmp_path)
    assert "random_split: need the test rows of a component after its training rows" in text


def test_a_split_by_machine_alone_is_refused(table, bundle, tmp_path):
    part = np.where(table["component"] < "n00010", "train", "test")
    text = refused(LeakError, table.assign(part=part), bundle, tmp_path)
    assert "machine_split: need the test rows after all training rows" in text


def test_a_split_without_an_embargo_is_refused(table, bundle, tmp_path):
    part = np.where(table["t"] < CUT * DAY_NS, "train", "test")
    part[table["t"] == (CUT - 3) * DAY_NS] = "test"
    text = refused(LeakError, table.assign(part=part), bundle, tmp_path)
    assert "no_embargo: need 172800 s, the horizon, between training and test rows" in text
    assert "was 86400 s" in text


def test_a_forecast_that_was_made_later_is_refused(table, bundle, tmp_path):
    late = table.assign(t_avail=table["t"])
    assert scored(late, bundle, tmp_path).flags == ()
    late.loc[4, "t_avail"] += 1
    text = refused(LeakError, late, bundle, tmp_path)
    assert text == (f"/scores.csv:6: future_feature: need t_avail <= t, was {DAY_NS + 1}")


@pytest.mark.slow
def test_a_threshold_that_is_best_on_what_is_scored_is_flagged(table, bundle, tmp_path):
    honest = scored(table, bundle, tmp_path)
    alarm = table["score"] >= honest.threshold
    assert scored(table.assign(alarm=alarm), bundle, tmp_path).flags == ()
    test = table["part"] == "test"
    truth = outcome_of(table, bundle)
    valid = test & ~np.isnan(truth)
    levels = np.sort(table["score"][valid].unique())
    f1 = [f1_of(truth[valid] == 1, table["score"][valid] >= level) for level in levels]
    tuned = (table["score"] >= levels[np.argmax(f1)]).astype(int)
    assert scored(table.assign(alarm=tuned), bundle, tmp_path).flags == ("test_tuned_threshold",)


def test_given_scores_that_are_the_outcomes_are_too_good_to_be_true(table, bundle, tmp_path):
    leaky = table.assign(score=np.nan_to_num(outcome_of(table, bundle)))
    found = scored(leaky, bundle, tmp_path)
    assert found.flags == (TOO_GOOD,)
    assert found.skill.endswith(f" Suspicious: {TOO_GOOD}.")


def outcome_of(table, bundle):
    """Return for every row whether its component fails within two days, NaN under repair."""
    truth = np.zeros(len(table))
    for failure in bundle.events():
        own = (table["component"] == failure.component).to_numpy()
        ahead = failure.t_event - table["t"].to_numpy()
        truth[own & (ahead > 0) & (ahead <= 2 * DAY_NS)] = 1
    for failure in bundle.events():
        own = (table["component"] == failure.component).to_numpy()
        at = table["t"].to_numpy()
        truth[own & (at >= failure.t_event) & (at < failure.t_resolved)] = np.nan
    return truth


def f1_of(truth, alarm):
    return 2 * (truth & alarm).sum() / (truth.sum() + alarm.sum())


def detection(random, adjust):
    """Return a day by the hour on 4 nodes: incidents of six hours, alarms that know little."""
    of = task(6, kind="detect")
    events = [
        event(f"n{node:05}", start, start + 6, fatal=False)
        for node in range(4)
        for start in range(20, 300, 40)
    ]
    score = random.random((320, 4))
    judged = judge(score, events, of)
    alarms = judged.alarms(0.9)
    if adjust:
        for failure in events:
            own = int(failure.component[1:])
            at = slice(failure.t_event // HOUR_NS, failure.t_resolved // HOUR_NS)
            alarms[at, own] |= alarms[at, own].any()
    return judged, alarms


def test_point_adjusted_alarms_are_flagged_and_honest_ones_are_not():
    judged, alarms = detection(np.random.default_rng(0), adjust=True)
    assert "point_adjusted" in flags_of(judged, alarms)
    judged, alarms = detection(np.random.default_rng(0), adjust=False)
    assert flags_of(judged, alarms) == ()


def test_a_node_that_is_always_alarmed_is_not_point_adjusted():
    of = task(6)
    events = [event("n00000", start, start + 1) for start in range(20, 300, 40)]
    judged = judge(np.ones((320, 2)), events, of)
    assert not is_point_adjusted(judged, judged.alarms(0.5))


def test_rows_available_before_their_event_are_refused(bundle):
    valid, early = event("n00001", 5), event("n00001", 7, known_h=6.5)
    done = drain("n00002", 5)
    too_soon = replace(done, id="d", t_avail=done.t_event - 1)
    for events, actions, problem in (
        ((valid,), (done,), ""),
        ((valid, early), (done,), "events.jsonl: future_feature: need t_avail >= t_event "
         "1970-01-01T07:00Z of 'n00001@7', was 1970-01-01T06:30Z"),
        ((valid,), (done, too_soon), "actions.jsonl: future_feature: need t_avail >= t_event "
         "1970-01-01T05:00Z of 'd', was 1970-01-01T04:59:59.999999999Z"),
    ):  # fmt: skip
        leaky = Bundle.open(bundle.path)
        leaky.events, leaky.actions = (lambda rows=events: rows), (lambda rows=actions: rows)
        if not problem:
            refuse_contradicting(leaky)
            continue
        with pytest.raises(LeakError) as caught:
            refuse_contradicting(leaky)
        assert str(caught.value) == f"{bundle.path}/{problem}"


def test_a_model_is_not_scored_on_the_time_it_was_fitted_on():
    june_ns = 1_719_705_600 * 10**9
    refuse_trained("a.tlmodel", june_ns, june_ns)
    with pytest.raises(LeakError) as caught:
        refuse_trained("a.tlmodel", june_ns, june_ns - 12 * HOUR_NS)
    assert str(caught.value) == (
        "a.tlmodel: test_tuned_threshold: need scored time from 2024-06-30 on, the end of its "
        "training, was 2024-06-29T12:00Z"
    )


def test_a_column_that_equals_the_label_is_flagged_and_a_good_one_is_not():
    random = np.random.default_rng(1)
    failed = random.random(2000) < 0.02
    leaky = failed + 0.1 * random.random(2000)
    good = failed + random.normal(size=2000)
    gone = np.where(failed, np.nan, 1.0)
    flags = suspicious_features(
        np.column_stack([leaky, -leaky, good, gone]), failed, ["leak", "lack", "good", "gone"]
    )
    assert flags == tuple(f"suspicious_feature: {name}" for name in ("leak", "lack", "gone"))


class Level:
    """Reads one metric, as any predictor would."""

    name = "level"
    horizon_s = 48 * HOUR_S
    every_s = 24 * HOUR_S

    def __init__(self, bundle=None):
        self.needs = (Need("heat"),)
        self.bundle = bundle

    def forecast(self, view):
        heat = np.nan_to_num(view.latest("heat"))
        if self.bundle is not None:
            soon = {
                e.component
                for e in self.bundle.events()
                if 0 < e.t_event - view.now_ns <= 2 * DAY_NS
            }
            heat = heat + [worker in soon for worker in view.workers]
        return Hazard(probability=np.clip(heat / 10, 0, 1))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "m.tltrace"
    random = np.random.default_rng(4)
    metrics = {"heat": lambda failed: random.random(failed.shape)}
    return write_bundle(path, days=40, rate=0.05, metrics=metrics)[0]


def refuse(measured, forecasts):
    """Make forecasts of the trace, and again up to day 20 of one that goes on otherwise."""
    message = forecasts(measured)
    refuse_future("mine", message, measured, forecasts, after_ns=20 * DAY_NS)


def test_a_predictor_that_sees_the_future_is_refused_and_one_that_does_not_is_not(measured):
    def honest(of, end_ns=None):
        return backtest_forecasts(
            of, Level(), tick_s=6 * HOUR_S, repair_s=24 * HOUR_S, end_ns=end_ns
        )

    def seer(of, end_ns=None):
        return backtest_forecasts(
            of, Level(of), tick_s=6 * HOUR_S, repair_s=24 * HOUR_S, end_ns=end_ns
        )

    refuse(measured, honest)
    with pytest.raises(LeakError, match="mine: future_feature: need forecasts up to 1970-01-21"):
        refuse(measured, seer)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda t: t.drop(columns="score"), ": missing column score; there are component, part, t"),
        (lambda t: t.rename(columns={"t": "ts"}), ": missing column t"),
        (
            lambda t: pd.DataFrame({"t;component;score": ["1;n00001;0.5"]}),
            ": missing column t; there are t;component;score; separate cells by commas, the header "
            "is 't;c",
        ),
        (lambda t: t.iloc[:0], ": need at least one row, was none"),
        (lambda t: put(t, "component", "n7"), ":5: need a watched node, was n7"),
        (lambda t: put(t, "score", np.nan), ":5: need a finite score, was nan"),
        (lambda t: put(t, "score", np.inf), ":5: need a finite score, was inf"),
        (lambda t: put(t, "score", "high"), ":5: need a finite score, was high"),
        (lambda t: put(t, "t", "noon"), ":5: need ns since the epoch or ISO 8601, as in most"),
        (
            lambda t: put(t.assign(t=pd.to_datetime(t["t"]).astype(str)), "t", "2026"),
            ":5: need ns since the epoch or ISO 8601, as in most rows, was 2026",
        ),
        (
            lambda t: put(t, "t", "9" * 30),
            f":5: need ns since the epoch or ISO 8601, was {'9' * 30}",
        ),
        (
            lambda t: t.assign(t="9999-12-31"),
            ":2: need ns since the epoch or ISO 8601, was 9999-12-31",
        ),
        (lambda t: put(t, "score", "a\nb"), ":5: need a finite score, was a\\nb"),
        (lambda t: put(t, "part", "dev"), ":5: need part train or test, was dev"),
        (lambda t: put(t.assign(alarm=0), "alarm", 3), ":5: need alarm 0 or 1, was 3"),
        (lambda t: put(t, "component", "n00002"), ":5: need one score per component and time"),
        (lambda t: t[t["part"] == "train"], ": need rows to score, was none"),
        (lambda t: t[t["part"] == "test"], ": need earlier rows to set a threshold on"),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused_with_its_row(table, bundle, tmp_path, spoil, problem):
    assert refused(TraceError, spoil(table), bundle, tmp_path).startswith(f"/scores.csv{problem}")


def put(table, column, value):
    """Return the table with one value of its fourth row, which is line 5, exchanged."""
    table = table.astype({column: object})
    table.loc[3, column] = value
    return table


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("scores.parquet", b"nothing"),
        ("scores.csv.gz", gzip.compress(b"t,component,score\n", mtime=0)[:-9]),
        ("scores.csv.xz", b"nothing"),
        ("scores.csv.zip", b"nothing"),
        ("scores.csv.tar", b"nothing"),
    ],
    ids=["Parquet", "gz", "xz", "zip", "tar"],
)
def test_a_file_that_is_no_table_is_refused(bundle, tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(TraceError, match=f"{name}: cannot read as Parquet or CSV: .+"):
        given_scores(path, bundle, task(48), until_ns=0)
