"""What is chosen is best on earlier time, and nothing of the time that is scored is looked at."""

from dataclasses import replace

import numpy as np
import pytest

from tests.evaluate.disks import DAY_NS
from tests.evaluate.traces import write_bundle
from tests.fitting.plugins import Blind, Heat, info, warm
from torchloom_core.floor.errors import ConfigError, TraceError
from torchloom_core.lab.activation.discovery import discover
from torchloom_core.lab.fitting.choose import Candidate, candidates, choose, fit_best
from torchloom_core.lab.fitting.fit import fit
from torchloom_core.lab.fitting.time_split import EarlierPart
from torchloom_core.lab.learning.card import to_markdown

pytestmark = pytest.mark.slow
HORIZON = {"horizon_s": 86_400.0}


def test_all_that_learns_is_tried_with_and_without_telemetry():
    found = candidates(discover(), HORIZON, tick_s=3600.0, has_metrics=True)
    names = [candidate.name for candidate in found]
    assert "boosting, telemetry and faults" in names
    assert "boosting, faults" in names
    assert "fault_history" in names
    assert not any(name.startswith(("trend", "ewma")) for name in names)
    spans = next(one.options["spans_s"] for one in found if one.name == names[0])
    assert spans == [43_200.0, 172_800.0]


def test_without_telemetry_each_is_tried_once_but_for_its_variants():
    found = candidates(discover(), HORIZON, tick_s=3600.0, has_metrics=False)
    usual = [candidate.info.name for candidate in found if not candidate.what]
    assert len({*usual}) == len(usual)
    tried = {one.what for one in found if one.info.name == "forest"}
    assert tried == {"", "min_leaf_rows 20", "min_leaf_rows 100"}


def test_variants_are_tried_beside_the_defaults_unless_one_of_their_options_is_given():
    def tried(**options):
        among = candidates(discover(), {**HORIZON, **options}, tick_s=3600.0, has_metrics=True)
        return {one.what: one.options for one in among if one.info.name == "boosting"}

    found = tried()
    assert found["faults, max_leaves 8, l2 10.0"] == {
        **HORIZON, "metrics": [], "max_leaves": 8, "l2": 10.0,
    }  # fmt: skip
    with_season = "max_leaves 8, l2 10.0, seasons_s [86400.0, 604800.0]"
    usual = ["", ", max_leaves 8, l2 10.0", f", {with_season}"]
    assert [*found] == [f"{what}{more}" for what in ("telemetry and faults", "faults")
                        for more in usual]  # fmt: skip
    assert [*tried(l2=3.0)] == ["telemetry and faults", "faults"]


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({}, "need horizon_s=SECONDS > 0 for all candidates, was none"),
        ({"horizon_s": "soon"}, "horizon_s=SECONDS > 0 .*, was 'soon'"),
        ({"horizon_s": -1}, "horizon_s=SECONDS > 0 .*, was -1"),
        ({"horizon_s": float("nan")}, "horizon_s=SECONDS > 0 .*, was nan"),
        ({**HORIZON, "tress": 3}, "need an option of a candidate, was 'tress'; did you"),
    ],
)
def test_invalid_options_are_refused(options, wrong):
    with pytest.raises(ConfigError, match=wrong):
        candidates(discover(), options, tick_s=3600.0, has_metrics=True)


def test_the_best_on_earlier_time_is_chosen_and_all_candidates_are_listed(bundle, settings):
    among = [Candidate(info(Blind), {}, ""), Candidate(info(Heat), {}, "")]
    chosen, tried, _ = choose(bundle, among, settings)
    assert chosen.info.name == "heat"
    assert [one.candidate for one in tried] == ["blind", "heat"]
    assert tried[1].mean > tried[0].mean
    assert [(len(one.auprc), one.why) for one in tried] == [(3, ""), (3, "")]


@pytest.mark.parametrize(
    ("elaborate", "simple", "taken"),
    [
        ((0.566, 0.597, 0.703), (0.537, 0.605, 0.697), "logistic"),
        ((0.248, 0.224, 0.178), (0.235, 0.178, 0.123), "heat"),
        ((0.3, 0.3, 0.3), (0.29, 0.29, 0.29), "heat"),
        ((0.3, 0.3, 0.3), (0.3, 0.3, 0.3), "logistic"),
        ((0.2, 0.2, 0.2), (0.3, 0.1, 0.25), "logistic"),
        ((0.9, 0.1, 0.5), (0.1, 0.9, None), "heat"),
    ],
    ids=["within the error", "surely", "little and always", "the same", "above", "not judged"],
)
def test_a_baseline_is_taken_before_what_is_better_by_no_more_than_the_folds_err(
    bundle, settings, monkeypatch, elaborate, simple, taken
):
    fold = zip(elaborate, simple, strict=True)
    monkeypatch.setattr(
        "torchloom_core.lab.fitting.choose.judged_on", lambda *_: [one or "" for one in next(fold)]
    )
    logistic = info(type("Logistic", (Heat,), {"name": "logistic"}))
    among = [Candidate(info(Heat), {}, ""), Candidate(logistic, {}, "")]
    chosen, tried, limits = choose(bundle, among, settings)
    assert chosen.info.name == taken
    found = [one for one in limits if one.endswith("the simpler one was chosen.")]
    assert bool(found) == (taken == "logistic" and tried[0].mean >= tried[1].mean)
    assert all(one.startswith("heat is above logistic by") for one in found)


def test_what_came_after_the_training_time_does_not_change_what_is_reached(
    bundle, settings, tmp_path
):
    among = [Candidate(info(Heat), {}, "")]
    _, whole, _ = choose(bundle, among, settings)
    _, early, _ = choose(EarlierPart(bundle, settings.until_ns), among, settings)
    assert whole == early


def test_a_candidate_without_a_score_is_listed_with_the_reason_and_not_chosen(bundle, settings):
    broken = Candidate(info(Heat), {"nonsense": 1}, "broken")
    chosen, tried, _ = choose(bundle, [broken, Candidate(info(Heat), {}, "")], settings)
    assert chosen.name == "heat"
    assert tried[0].auprc == (None, None, None)
    assert "nonsense" in tried[0].why


def test_a_fold_without_any_score_is_reported_once_and_left_out(bundle, settings):
    short = replace(settings, until_ns=19 * DAY_NS)  # its first fold has 7.6 days to learn from
    among = [Candidate(info(Heat), {}, ""), Candidate(info(Blind), {}, "")]
    _, tried, (limit,) = choose(bundle, among, short)
    assert [len(one.auprc) for one in tried] == [2, 2]
    assert [one.why for one in tried] == ["", ""]
    assert limit.startswith("Fold 1 of 3 was not used to choose the predictor: ")
    assert "need two horizons and four moments before --until" in limit
    assert limit.endswith(" or less, or a later --until.")


def test_a_candidate_that_needs_telemetry_gets_none_without_it(tmp_path, settings):
    bare, _ = write_bundle(tmp_path / "b.tltrace", rate=0.03)
    plugins = [one for one in discover() if one.name in {"fault_history", "seasonal_residual"}]
    among = candidates(plugins, HORIZON, tick_s=settings.tick_s, has_metrics=False)
    _, (_, residual), _ = choose(bare, among, settings)
    assert residual.why.endswith("; the trace has no gpu_power_watts, gpu_temp_celsius")


def test_without_a_failure_the_choice_is_refused_in_one_line(tmp_path, settings):
    calm, _ = write_bundle(tmp_path / "c.tltrace", rate=0.0, metrics={"heat": warm()})
    with pytest.raises(TraceError, match="need failures in the folds of the training time"):
        choose(calm, [Candidate(info(Heat), {}, "")], settings)


def test_where_no_event_counts_nothing_is_tried(tmp_path, settings, monkeypatch):
    never = "torchloom_core.lab.fitting.choose.choose"
    monkeypatch.setattr(never, lambda *_, **__: pytest.fail("it was tried"))
    calm, _ = write_bundle(tmp_path / "c.tltrace", rate=0.0, metrics={"heat": warm()})
    with pytest.raises(TraceError, match=r"to choose a predictor, was none; the trace has no ev"):
        fit_best(calm, discover(), HORIZON, settings)


def test_a_misspelt_metric_is_reported_once_before_the_folds(bundle, settings, monkeypatch, caplog):
    never = "torchloom_core.lab.fitting.choose.choose"
    monkeypatch.setattr(never, lambda *_, **__: pytest.fail("it was tried"))
    with pytest.raises(pytest.fail.Exception, match="it was tried"):
        fit_best(bundle, discover(), {**HORIZON, "metrics": ["heta"]}, settings)
    assert caplog.messages == [
        "predictor auto reads metrics that the trace lacks: heta; did you mean heat?"
    ]


def test_the_card_lists_what_was_tried(bundle, settings):
    plugins = [one for one in discover() if one.name in {"fault_history", "one_rule"}]
    stages = []

    def begin(stage):
        stages.append(stage)
        return lambda _: None

    model = fit_best(bundle, plugins, HORIZON, settings, baselines=plugins, stages=begin)
    assert stages[0] == "choose"
    assert len(stages) > 2
    assert [one.predictor for one in model.card.baselines] == ["random", "fault_history"]
    names = {one.candidate for one in model.card.tried}
    assert names == {"fault_history", "one_rule, faults", "one_rule, telemetry and faults"}
    best = max(model.card.tried, key=lambda one: one.mean)
    assert best.candidate.startswith(model.info.predictor)
    page = to_markdown(model.card)
    assert "## Candidates, scored on the training time" in page
    again = fit(bundle, next(p for p in plugins if p.name == model.info.predictor),
                model.info.options, settings, baselines=plugins)  # fmt: skip
    assert again.card.score == model.card.score
    assert np.isfinite(best.mean)
