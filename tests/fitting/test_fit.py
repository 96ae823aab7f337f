"""Fitting learns from the past only, and measures the model on the time after."""

from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from msgspec import structs

from tests.evaluate.report.reports import interval, score
from tests.evaluate.traces import HOUR_NS, event, watched, write_bundle
from tests.fitting.plugins import Blind, Heat, Quiet, answering, info, warm
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import ConfigError, LeakError, PluginError, TraceError
from torchloom_core.lab.activation.discovery import PluginInfo, discover
from torchloom_core.lab.evaluate.forecasts.altered_future import OtherFuture
from torchloom_core.lab.fitting.checks import checked_trace
from torchloom_core.lab.fitting.fit import _limits, fit
from torchloom_core.lab.fitting.time_split import Fitting
from torchloom_core.lab.learning.calibration import Calibration
from torchloom_core.lab.learning.card import to_markdown
from torchloom_core.lab.learning.forecast_score import FEW
from torchloom_core.lab.learning.skill import BASELINES
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Component
from torchloom_core.lab.trace.bundle.writer import BundleWriter
from torchloom_core.plugin import Hazard, NeedFaults

DAY_NS = 24 * HOUR_NS


@pytest.fixture(scope="module")
def baselines():
    return [plugin for plugin in discover() if plugin.name in BASELINES]


@pytest.fixture(scope="module")
def heat(bundle, settings):
    """A model fitted to heat, without baselines."""
    return fit(bundle, info(Heat), {}, settings)


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.slow
def test_a_predictor_that_is_no_better_than_a_baseline_is_weak_and_is_compared(
    bundle, settings, baselines
):
    card = fit(bundle, info(Heat), {}, settings, baselines=baselines).card
    assert card.verdict.level == "weak"
    assert card.verdict.sentence.startswith("Weak: AUPRC is above that of a random score by +")
    assert card.verdict.sentence.endswith(
        "Not useful, as it is not significantly above every baseline."
    )
    assert [score.predictor for score in card.baselines] == ["random", *BASELINES]
    assert list(card.score.versus) == ["random", *BASELINES]
    assert card.score.incidents >= 20
    assert card.score.auprc.low > card.baselines[0].auprc.value
    assert {score.samples for score in (card.score, *card.baselines)} == {card.score.samples}


@pytest.mark.slow
def test_each_stage_reports_its_start_and_progress(bundle, settings, baselines):
    reported = {}

    def begin(name):
        return reported.setdefault(name, []).append

    fit(bundle, info(Heat), {}, settings, baselines=baselines, stages=begin)
    on_the_way = [f"fit {name}" for name in BASELINES]
    passes = ["fit heat to calibrate", "calibrate heat", "fit heat", "forecast heat"]
    assert [*reported] == [*passes[:2], *on_the_way, *passes[2:], "score heat"]
    assert all(reported[name][-1] > 0.97 for name in passes)
    assert all(reported[name] == [0.0] for name in [*on_the_way, "score heat"])
    assert all(list(shares) == sorted(shares) for shares in reported.values())


@pytest.mark.slow
def test_a_trace_with_a_changed_file_is_refused(tmp_path, settings):
    mine, _ = write_bundle(tmp_path / "t.tltrace", rate=0.03)
    with (mine.path / "events.jsonl").open("a") as file:
        file.write("\n")
    refused = pytest.raises(TraceError, match=r"events\.jsonl.*; the file changed after the bundle")
    with refused, checked_trace(mine, settings):
        pass


@pytest.mark.slow
def test_a_baseline_learns_what_it_would_alone(bundle, settings, baselines):
    """A baseline is fitted on the same moments beside another predictor as alone."""
    (logistic,) = (plugin for plugin in baselines if plugin.name == "logistic")
    (boosting,) = (plugin for plugin in discover() if plugin.name == "boosting")
    options = {"horizon_s": 172_800.0, "spans_s": [172_800.0]}
    beside = fit(bundle, boosting, options, settings, baselines=[logistic]).card
    alone = fit(bundle, logistic, {**options, "max_healthy": 20_000}, settings).card
    (found,) = (score for score in beside.baselines if score.predictor == "logistic")
    assert found.auprc == alone.score.auprc
    assert found.threshold == alone.score.threshold
    assert "newest heat" in alone.columns


@pytest.mark.slow
def test_a_predictor_is_not_compared_with_itself(bundle, settings, baselines):
    (one_rule,) = (plugin for plugin in baselines if plugin.name == "one_rule")
    card = fit(bundle, one_rule, {"horizon_s": 172_800.0}, settings, baselines=baselines).card
    assert [score.predictor for score in card.baselines] == ["random", "fault_history", "logistic"]


@pytest.mark.slow
def test_a_baseline_that_does_better_is_named_in_the_sentence(bundle, settings, baselines):
    class Faint(Quiet):
        name = "faint"

        def forecast(self, view):
            noise = np.random.default_rng(view.now_ns // DAY_NS).normal(0.0, 1.5, len(view))
            return Hazard(probability=1 / (1 + np.exp(-view.latest("heat") - noise)))

    card = fit(bundle, info(Faint), {}, settings, baselines=baselines).card
    assert card.verdict.sentence.startswith("Weak:")
    assert ", but below that of " in card.verdict.sentence


@pytest.mark.slow
def test_it_learns_without_the_time_it_is_calibrated_on_and_then_with_it(bundle, settings):
    learned = []

    class Notes(Heat):
        def fit(self, examples):
            learned.append([])
            for example in examples:
                learned[-1].append((example.view.now_ns, example.outcome[0]))
            self.level = 0.5

    card = fit(bundle, info(Notes), {}, settings).card
    first, again = learned
    assert first[-1][0] == 42 * DAY_NS
    assert again[-1][0] == card.fitted_until_ns == 57 * DAY_NS
    assert np.array_equal(first, again[: len(first)], equal_nan=True)


class Shyer(Heat):
    """Is only half as sure of everything once it has learned again."""

    learned = 0

    def fit(self, examples):
        super().fit(examples)
        self.learned += 1

    def forecast(self, view):
        sure = Heat.forecast(self, view).probability
        odds = sure / (1.0 - sure) if self.learned == 1 else np.sqrt(sure / (1.0 - sure)) / 3.0
        return Hazard(probability=odds / (1.0 + odds))


@pytest.mark.slow
def test_a_less_confident_refit_raises_as_many_alarms(bundle, settings):
    often = replace(settings, every_s=6 * 3600.0, tick_s=6 * 3600.0)
    heat, shyer = (fit(bundle, info(cls), {}, often) for cls in (Heat, Shyer))
    was, now = heat.card.score, shyer.card.score
    assert shyer.info.threshold == pytest.approx(heat.info.threshold)
    assert now.recall.value == pytest.approx(was.recall.value, rel=0.1)
    assert shyer.info.calibration.stretch == pytest.approx(2.0, rel=0.1)
    assert now.auprc.value == pytest.approx(was.auprc.value)


@pytest.mark.slow
def test_nothing_after_the_end_of_training_changes_what_was_learned(bundle, settings, heat):
    now = fit(OtherFuture(bundle, settings.until_ns), info(Heat), {}, settings)
    assert now.parts == heat.parts
    assert now.info == heat.info
    assert now.card.score != heat.card.score


def test_the_same_seed_gives_the_same_model_to_the_byte(bundle, settings, baselines, tmp_path):
    for name in ("a", "b"):
        fit(bundle, info(Heat), {}, settings, baselines=baselines).save(
            tmp_path / f"{name}.tlmodel"
        )
    for file in ("model.json", "card.json", "card.md", "parts/heat.json"):
        one, two = (tmp_path / f"{name}.tlmodel" / file for name in ("a", "b"))
        assert one.read_bytes() == two.read_bytes()


@pytest.mark.slow
def test_metrics_default_to_those_of_the_trace(bundle, settings):
    assert fit(bundle, info(Quiet), {}, settings).info.options["metrics"] == ["heat"]
    absent = fit(bundle, info(Blind), {"metrics": ["power"]}, settings)
    assert absent.info.options["metrics"] == ["power"]


@pytest.mark.slow
def test_one_that_does_not_learn_is_calibrated_and_has_no_parts(bundle, settings, heat):
    model = fit(bundle, info(Quiet), {}, settings)
    assert model.parts == {}
    assert model.card.limits[0] == heat.card.limits[0]
    assert not model.info.calibration.is_identity
    bins = model.card.score.calibration
    assert abs(sum((b.forecast - b.observed) * b.samples for b in bins)) < 0.3 * sum(
        b.observed * b.samples for b in bins
    )


@pytest.mark.slow
def test_the_threshold_keeps_about_the_budget_on_the_time_after(bundle, settings):
    for budget in (0.02, 0.2):
        changed = replace(settings, false_alarms_per_node_day=budget)
        found = fit(bundle, info(Heat), {}, changed).card.score.false_alarms_per_node_day
        assert budget / 4 < found.value < budget * 2.5


@pytest.mark.slow
@pytest.mark.parametrize("allowed", [0.01, 0.001])
def test_a_budget_below_one_false_alarm_is_a_limit(bundle, settings, allowed):
    changed = replace(settings, false_alarms_per_node_day=allowed)
    limits = fit(bundle, info(Heat), {}, changed).card.limits
    found = [one for one in limits if one.startswith("The threshold allows no false")]
    assert len(found) == (allowed == 0.001)
    assert all(
        "1 false alarms per 1,000 node-days are less than one in the" in one for one in found
    )


@pytest.mark.slow
def test_a_card_counts_false_alarms_by_what_is_watched(tmp_path, settings):
    metrics = {"heat": warm()}
    disks, _ = write_bundle(tmp_path / "d.tltrace", rate=0.03, metrics=metrics, kind="disk")
    few = replace(settings, false_alarms_per_node_day=0.0002)
    card = fit(disks, info(Heat), {}, few).card
    assert card.watched == "disk"
    assert card.score.threshold_from == (
        "for 0.2 false alarms per 1,000 disk-days on the 14 days of calibration"
    )
    page = to_markdown(card)
    assert "node" not in page.replace("--false-alarms-per-node-day", "")
    assert f"{card.score.component_days:.0f} disk-days" in page


@pytest.mark.slow
def test_a_column_that_knows_the_failures_is_named_in_the_card(tmp_path, settings):
    def hours_left(failed):
        return 5.0 * (failed | np.vstack([failed[1:], failed[-1:]]))

    leaky, _ = write_bundle(
        tmp_path / "l.tltrace", rate=0.03, metrics={"heat": warm(), "hours_left": hours_left}
    )
    card = fit(leaky, info(Heat), {}, settings).card
    assert card.score.flags == ("suspicious_feature: hours_left",)
    assert "Suspicious: suspicious_feature: hours_left." in card.verdict.sentence


@pytest.mark.slow
def test_a_predictor_that_reads_the_failures_directly_is_suspicious_on_its_card(bundle, settings):
    def announced(view):
        until_ns = view.now_ns + 2 * DAY_NS
        soon = {e.component for e in bundle.events() if view.now_ns < e.t_event <= until_ns}
        return np.array([float(worker in soon) for worker in view.workers])

    card = fit(bundle, info(answering(announced)), {}, settings).card
    doubt = "suspicious_score: AUPRC 1 is suspiciously high; look for a leak"
    assert doubt in card.score.flags
    assert card.verdict.sentence.endswith(f"Suspicious: {doubt}.")
    assert card.verdict.level == "useful"


@pytest.mark.slow
def test_the_card_of_a_fitted_detection_has_incidents_instead_of_failures(tmp_path, settings):
    trace, _ = write_bundle(tmp_path / "d.tltrace", rate=0.03, metrics={"heat": warm()})
    changed = replace(settings, task="detect")
    model = fit(trace, info(Quiet), {"every_s": 43_200.0}, changed)
    assert (model.info.task, model.card.score.task) == ("detect", "detect")
    page = to_markdown(model.card)
    assert "| incidents | " in page
    assert "moments in them: slope" in page
    assert "of them in an incident" in page
    assert "failure" not in page


@pytest.mark.slow
def test_a_detection_is_fitted_without_the_current_events(bundle, settings):
    class Deaf(Quiet):
        def __init__(self, options):
            super().__init__(options)
            self.needs = (*self.needs, NeedFaults(90 * 86_400.0))

        def forecast(self, view):
            assert not view.faults
            return super().forecast(view)

    changed = replace(settings, task="detect", kinds=("crash",), lead_s=3600.0)
    model = fit(bundle, info(Deaf), {"every_s": 43_200.0}, changed)
    for made in (model.info, model.card.score):
        assert (made.task, made.lead_s) == ("detect", 3600.0)
    assert model.info.kinds == ("crash",)


def some_days(path, *events):
    """Write 120 days of three nodes with these events."""
    with BundleWriter(
        path,
        name="t",
        start_ns=0,
        end_ns=120 * DAY_NS,
        source="a test",
        licence="none",
        synthetic=True,
    ) as writer:
        for name in watched(3).ids:
            writer.add(Component(id=name, kind="node"))
        for one in events:
            writer.add(one)
    return Bundle.open(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("events", "kinds", "hint"),
    [
        ([], (), "; the trace has no event"),
        (
            [event("n00000", 24, fatal=False), event("n00001", 72, fatal=False, kind="ecc")],
            (),
            "; none of its 2 events is fatal: set the kinds that count with --kind, such as crash, "
            "ecc, or use --task detect",
        ),
        (
            [event("n00000", 24 * 70), event("n00001", 24 * 90), event("n00001", 9, kind="ecc")],
            ("crash",),
            "; the first of its 2 events of crash became known on 1970-03-12, day 70, but training "
            "ends on 1970-02-14, day 44: set --until later than day 60",
        ),
        (
            [event("n00000", 24, known_h=24 * 50)],
            (),
            "; the first of its 1 failures became known on 1970-02-20, day 50, but training ends "
            "on 1970-02-14, day 44: set --until later than day 60",
        ),
    ],
    ids=["no event", "none fatal", "after until", "known late"],
)
def test_an_error_says_why_there_is_no_failure_to_learn_from(
    tmp_path, settings, events, kinds, hint
):
    trace = some_days(tmp_path / "t.tltrace", *events)
    (boosting,) = (plugin for plugin in discover() if plugin.name == "boosting")
    with pytest.raises(PluginError) as error:
        fit(trace, boosting, {"horizon_s": 172_800.0}, replace(settings, kinds=kinds))
    assert one_line(error).startswith("boosting: need a failure to learn from, was none in ")
    assert one_line(error).endswith(f" moments of workers{hint}")


@pytest.mark.slow
def test_a_detection_of_fatal_events_only_is_refused_with_the_reason(tmp_path, settings):
    trace = some_days(tmp_path / "t.tltrace", event("n00000", 24, 96), event("n00001", 72, 96))
    (boosting,) = (plugin for plugin in discover() if plugin.name == "boosting")
    with pytest.raises(PluginError) as error:
        fit(trace, boosting, {"horizon_s": 172_800.0}, replace(settings, task="detect"))
    assert one_line(error).endswith(
        " moments of workers; all of its 2 events are fatal, so the components are away during "
        "them and there is nothing to learn from: use --task forecast"
    )


@pytest.mark.slow
def test_a_baseline_that_cannot_be_built_is_left_out_and_named(bundle, settings):
    broken = PluginInfo("fault_history", "predictor", "x", "tests", "1.0", problem="is broken")
    card = fit(bundle, info(Heat), {}, settings, baselines=[broken]).card
    assert [score.predictor for score in card.baselines] == ["random"]
    (limit,) = (one for one in card.limits if "fault_history" in one)
    assert limit.startswith("No comparison with fault_history: ")
    assert limit.endswith("is broken.")


def silent_before(until_ns):
    """Return a predictor without probabilities before a moment."""
    return info(
        answering(lambda view: np.full(len(view), 0.5 if view.now_ns >= until_ns else np.nan))
    )


@pytest.mark.slow
def test_a_predictor_without_forecasts_in_the_calibration_time_is_refused_by_name(bundle, settings):
    with pytest.raises(PluginError, match=r"^predictor says: need a probability at some labelled"):
        fit(bundle, silent_before(settings.until_ns), {}, settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("probability", "problem"),
    [
        (lambda view: np.full(len(view), np.nan), "need a probability of some worker at some time"),
        (lambda view: np.zeros(len(view) + 1), "garbage: need float probabilities of shape (20,)"),
        (lambda view: np.full(len(view), 1.5), "garbage: need probabilities in [0, 1], was 1.5"),
        (lambda view: view.latest("none"), "raised: KeyError"),
    ],
)
def test_a_predictor_that_breaks_its_contract_is_refused(bundle, settings, probability, problem):
    with pytest.raises(PluginError) as error:
        fit(bundle, info(answering(probability)), {}, settings)
    assert one_line(error).startswith("predictor says: ")
    assert problem in one_line(error)


@pytest.mark.slow
def test_a_predictor_that_ends_the_process_is_refused(bundle, settings):
    class Leaves(Heat):
        def fit(self, examples):
            raise SystemExit(0)

    class NeverThere(Heat):
        def __init__(self, options):
            raise SystemExit(0)

    class LeavesLater(Heat):
        def parts(self):
            raise SystemExit(0)

    for cls, message in (
        (Leaves, "cannot fit"),
        (NeverThere, "cannot be built"),
        (LeavesLater, "cannot read its parts"),
    ):
        with pytest.raises(PluginError) as error:
            fit(bundle, info(cls), {}, settings)
        assert one_line(error) == f"predictor heat: {message}: SystemExit: 0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "was"),
    [
        ([], "need parts as a dict, was list"),
        ({"a.json": "text"}, "bytes, was 'a.json' to str"),
        ({1: b"{}"}, "bytes, was 1 to bytes"),
        ({"../a.json": b"{}"}, "bytes, was '../a.json' to bytes"),
        ({"a" * 300: b"{}"}, "to bytes"),
    ],
)
def test_parts_that_cannot_be_files_are_refused_once_it_has_learned(bundle, settings, given, was):
    class Gives(Heat):
        def parts(self):
            return given

        def forecast(self, view):
            assert view.now_ns < settings.until_ns, "need its parts looked at before, was not"
            return super().forecast(view)

    with pytest.raises(PluginError) as error:
        fit(bundle, info(Gives), {}, settings)
    assert one_line(error).startswith("predictor heat: need parts ")
    assert one_line(error).endswith(was)


@pytest.mark.slow
def test_a_trace_that_knows_an_event_before_it_happens_is_not_learned_from(tmp_path, settings):
    early = some_days(tmp_path / "t.tltrace", event("n00000", 40, known_h=30))
    with pytest.raises(LeakError, match="future_feature"), checked_trace(early, settings):
        pass


@pytest.mark.slow
@pytest.mark.parametrize(
    "source", [{}, {"source": "--option"}], ids=["without a source", "with a source"]
)
def test_a_wrong_option_is_refused_with_its_name(bundle, settings, source):
    with pytest.raises(ConfigError) as error:
        fit(bundle, info(Heat), {"horizon": 1.0}, settings, **source)
    prefix = source.get("source", "options")
    assert one_line(error).startswith(f"{prefix}: predictors.heat.horizon: ")


@pytest.mark.slow
def test_too_many_forecasts_for_memory_are_refused_before_learning(bundle, settings):
    """Of the 76 days from the calibration on, and no others: only these are stored."""
    often, plugin = replace(settings, tick_s=1.0, every_s=1.0), Quiet(Quiet.Options())
    with pytest.raises(PluginError, match=r"raise every_s, was 1$"):
        Fitting(bundle, often, plugin)
    Fitting(bundle, replace(often, every_s=2.0), plugin)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked_s", "every_s"),
    [(None, 86_400.0), (130_000.0, 129_600.0), (60.0, 43_200.0)],
    ids=["of the predictor", "of the settings", "more often than there are samples"],
)
def test_forecasts_come_every_whole_number_of_ticks_from_the_calibration_on(
    bundle, settings, asked_s, every_s
):
    moments = []

    def hot(view):
        moments.append(view.now_ns)
        return np.clip(view.latest("heat"), 0.0, 1.0)

    model = fit(bundle, info(answering(hot)), {}, replace(settings, every_s=asked_s))
    assert model.info.every_s == every_s
    every_ns = round(every_s * SECOND_NS)
    from_ns = model.card.calibrated_from_ns + every_ns
    unseen_ns = next(ns for ns in moments if ns > model.card.fitted_until_ns)
    assert unseen_ns - every_ns <= model.card.fitted_until_ns
    assert moments == [
        *range(from_ns, settings.until_ns, every_ns),
        *range(unseen_ns, 120 * DAY_NS + 1, every_ns),
    ]


@pytest.mark.slow
def test_a_failure_without_an_end_lasts_repair_s_which_the_model_stores(bundle, settings):
    class Open(Bundle):
        def events(self):
            return tuple(structs.replace(one, t_resolved=None) for one in super().events())

    moments = []
    for repair_s in (0.0, 86_400.0, 4 * 86_400.0):
        changed = replace(settings, repair_s=repair_s)
        model = fit(Open(bundle.path, bundle.manifest), info(Heat), {}, changed)
        assert model.info.repair_s == repair_s
        moments.append(model.card.score.samples)
    assert moments[0] > moments[1] > moments[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ({"kinds": ("crsh",)}, "a kind of its events, was 'crsh'; did you mean crash?"),
        (
            {"known_before": ("heta",)},
            "a metric, attribute or kind of event of this trace, was 'heta'; did you mean heat?",
        ),
    ],
    ids=["kind", "known before"],
)
def test_a_name_that_the_trace_has_not_is_refused(bundle, settings, names, problem):
    with pytest.raises(TraceError) as error, checked_trace(bundle, replace(settings, **names)):
        pass
    assert one_line(error) == f"{bundle.path}: need {problem}"


@pytest.mark.slow
def test_a_model_stores_the_fingerprint_of_failures_known_when_training_ends(
    bundle, settings, heat
):
    """Neither an event that is no failure, nor one that became known at the very end."""
    until_h = settings.until_ns / HOUR_NS

    class Noted(Bundle):
        def events(self):
            more = event("n00019", 100, fatal=False), event("n00018", until_h)
            return tuple(sorted((*super().events(), *more), key=lambda one: one.t_event))

    model = fit(Noted(bundle.path, bundle.manifest), info(Heat), {}, settings)
    assert model.info.event_prints == heat.info.event_prints
    known = [one for one in bundle.events() if one.t_avail < settings.until_ns]
    assert len(heat.info.event_prints) == len(known)


@pytest.mark.slow
def test_inputs_declared_as_known_before_are_in_the_model_and_on_its_card(bundle, settings, heat):
    model = fit(bundle, info(Heat), {}, replace(settings, known_before=("heat", "crash")))
    assert model.info.known_before == ("heat", "crash")
    limit = "Declared as known beforehand, so not checked for leaks: heat, crash."
    assert limit in model.card.limits
    assert heat.info.known_before is msgspec.UNSET


@pytest.mark.slow
@pytest.mark.parametrize("synthetic", [True, False])
def test_the_card_lists_its_limits(bundle, settings, synthetic):
    loads = ("power", "heat", "fan")
    manifest = structs.replace(bundle.manifest, synthetic=synthetic, load_dependent=loads)
    fitting = Fitting(
        Bundle(bundle.path, manifest), replace(settings, false_alarms_per_node_day=0.5),
        Quiet(Quiet.Options()),
    )  # fmt: skip

    changed = SimpleNamespace(
        earlier=SimpleNamespace(component_days=100.0), calibration=Calibration()
    )

    def limits(*metrics, **found):
        examples = SimpleNamespace(moments=9, positives=2, metrics=metrics)
        return [*_limits(fitting, examples, changed, score(**{"incidents": FEW, **found}))]

    made_up = "The trace is synthetic: the score does not apply to a real fleet."
    least = [
        "Fitted on 9 labelled moments of a node, 2 of them followed by a failure.",
        "Not measured on another fleet, or after a change of this fleet.",
        *[made_up] * synthetic,
    ]
    assert limits(false_alarms_per_node_day=interval(1.0)) == least
    assert limits("power", "cold", "heat", incidents=19) == [
        *least,
        "It reads metrics that the trace does not have: cold, power.",
        "These metrics depend on the load, and change when a job moves: heat, power.",
        "Only counts have (exact) intervals: others need 20 failures, was 19.",
    ]
