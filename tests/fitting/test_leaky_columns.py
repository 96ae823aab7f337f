"""A fit on columns that know the future shows no skill, names them, and gives the skill without."""

from typing import Annotated

import msgspec
import numpy as np
import pytest

from tests.evaluate.disks import DAY_NS, bundle_of
from tests.evaluate.hindsight import disks as fleet_of_disks
from tests.evaluate.traces import task, write_bundle
from tests.fitting.plugins import Heat, info
from torchloom_core.floor.errors import PluginError
from torchloom_core.lab.activation.discovery import discover
from torchloom_core.lab.evaluate.forecasts.leaks import find_leaky_inputs
from torchloom_core.lab.fitting.fit import fit
from torchloom_core.lab.fitting.time_split import FitSettings
from torchloom_core.lab.learning.forecast_score import FEW
from torchloom_core.lab.learning.skill import RANDOM
from torchloom_core.plugin import Hazard


@pytest.fixture(scope="module")
def disks(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "disks.tltrace"
    return bundle_of(path, seed=0, disks=400, rate=0.008)[0]


def fitted(bundle, metrics, known_before=()):
    (boosting,) = (plugin for plugin in discover() if plugin.name == "boosting")
    options = {
        "metrics": metrics,
        "spans_s": [],
        "half_lives_s": [],
        "max_trees": 40,
        "horizon_s": 7 * 86_400.0,
        "every_s": 86_400.0,
    }
    settings = FitSettings(
        until_ns=bundle.manifest.start_ns + 70 * DAY_NS,
        tick_s=86_400.0,
        repair_s=86_400.0,
        known_before=tuple(known_before),
    )
    return fit(bundle, boosting, options, settings).card


@pytest.mark.slow
@pytest.mark.parametrize("column", ["last_date", "length", "records", "rank_of_length", "fails"])
def test_what_reads_a_column_that_knows_the_future_is_refused_and_the_column_named(disks, column):
    card = fitted(disks, [column, "temperature"])
    assert card.verdict.level == "refused"
    (flag,) = (flag for flag in card.score.flags if flag.startswith("leaky_column"))
    assert flag.startswith(f"leaky_column: {column}: ")


@pytest.mark.slow
def test_what_ranks_well_by_such_a_column_is_refused_for_it(disks):
    card = fitted(disks, ["wear", "fails"])
    assert card.score.versus[RANDOM].low > card.score.prevalence
    assert card.verdict.sentence.startswith("Refused: it reads leaky columns: fails; ")


@pytest.mark.slow
def test_the_card_has_the_score_without_leaky_columns(disks):
    card = fitted(disks, ["wear", "length"])
    (without,) = (limit for limit in card.limits if limit.startswith("Without length: "))
    alone = fitted(disks, ["wear"])
    assert f"AUPRC {alone.score.auprc.value:.3g} [" in without
    assert without.endswith(alone.verdict.sentence)
    assert alone.verdict.level in ("weak", "useful")


@pytest.mark.slow
def test_a_column_declared_as_known_before_is_accepted_and_listed(disks):
    card = fitted(disks, ["wear", "fails"], known_before=["fails"])
    assert card.verdict.level == "useful"
    assert not any("leaky" in flag for flag in card.score.flags)
    assert any("Declared as known beforehand" in limit for limit in card.limits)


@pytest.mark.slow
def test_a_metric_that_the_trace_has_not_is_no_obstacle(disks):
    card = fitted(disks, ["wear", "length", "smell"])
    assert any(limit.startswith("Without length: AUPRC") for limit in card.limits)


class Constant(Heat):
    """Reads the metrics of its options, and returns the same for all."""

    name = "constant"
    unfit = ()

    class Options(Heat.Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
        metrics: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]

    def __init__(self, options):
        if options.metrics in self.unfit:
            raise PluginError("needs length")
        super().__init__(options)

    def forecast(self, view):
        return Hazard(probability=np.full(len(view), 0.1))

    def fit(self, examples):
        for _ in examples:
            pass

    def parts(self):
        return {}


def constant(bundle, metrics, *, until_d=70, stages=lambda _: lambda _: None, **changes):
    """Return the limits on the predictor's worth without the columns that know the future."""
    until_ns = bundle.manifest.start_ns + until_d * DAY_NS
    settings = FitSettings(until_ns=until_ns, tick_s=86_400.0, repair_s=86_400.0)
    cls = type("Constant", (Constant,), changes)
    card = fit(bundle, info(cls), {"metrics": metrics}, settings, stages=stages).card
    return card, [one for one in card.limits if one.startswith(("It cannot", "Without"))]


@pytest.mark.parametrize(
    ("metrics", "unfit", "problem"),
    [
        (["length", "wear"], [("wear",)], "length: needs length."),
        (
            ["length", "fails"],
            [],
            "length, fails: options: predictors.constant.metrics: expected `array` of length >= 1.",
        ),
    ],
    ids=["of the class", "of an option"],
)
def test_a_predictor_that_is_unfit_without_the_column_is_reported(disks, metrics, unfit, problem):
    _, limits = constant(disks, metrics, unfit=unfit)
    assert limits == [f"It cannot be fitted without {problem}"]


def test_the_fit_without_the_column_reports_stages_and_few_failures_have_no_interval(disks):
    begun = []

    def begin(name):
        begun.append(name)
        return lambda _: None

    card, (limit,) = constant(disks, ["length", "wear"], until_d=110, stages=begin)
    stages = ["fit constant to calibrate", "calibrate constant", "fit constant"]
    stages += ["forecast constant", "score constant"]
    assert begun == [*stages, *(f"{stage} without length" for stage in stages)]
    assert card.score.incidents < FEW
    assert limit.startswith(f"Without length: AUPRC {card.score.auprc.value:.3g}. No skill shown")


def test_without_telemetry_a_metric_that_is_named_knows_nothing(tmp_path):
    bare, _ = write_bundle(tmp_path / "bare.tltrace", rate=0.03)
    plugin, paced = Heat(Heat.Options(metrics=("heat",))), {"tick_s": 86_400.0, "every_s": 86_400.0}
    assert find_leaky_inputs(bare, plugin.needs, task(24), **paced) == ()


@pytest.fixture(scope="module")
def noted(tmp_path_factory):
    """Disks of which a return was opened some days before each failure, as was written later."""
    fleet = fleet_of_disks(1, count=300)
    days = fleet.random.uniform(2, 6, len(fleet.failures))
    fleet.notes += [
        (max(0.0, day - before), row, "return opened")
        for (day, row), before in zip(fleet.failures, days, strict=True)
    ]
    fleet.attributes = {}
    fleet.metrics = {"temperature": fleet.metrics["temperature"]}
    return fleet.write(tmp_path_factory.mktemp("noted") / "disks.tltrace")


def judged_by_events(bundle, *known_before, by="logistic"):
    (plugin,) = (plugin for plugin in discover() if plugin.name == by)
    options = {"horizon_s": 7 * 86_400.0}
    if by == "logistic":
        options["spans_s"] = [2 * 86_400.0]
    settings = FitSettings(
        until_ns=bundle.manifest.start_ns + 70 * DAY_NS,
        tick_s=86_400.0,
        every_s=86_400.0,
        repair_s=86_400.0,
        known_before=known_before,
    )
    return fit(bundle, plugin, options, settings).card


@pytest.mark.slow
def test_a_kind_of_event_noted_afterwards_is_refused_with_the_score_without_it(
    noted,
):
    card = judged_by_events(noted)
    refusal = "Refused: it reads leaky columns: return opened; "
    assert card.verdict.sentence.startswith(refusal)
    text = "Without return opened and any other fault: AUPRC "
    assert any(limit.startswith(text) for limit in card.limits)
    assert judged_by_events(noted, "return opened").verdict.level in ("weak", "useful")


def test_a_leaky_fault_that_no_option_leaves_out_is_reported(noted):
    card = judged_by_events(noted, by="fault_history")
    text = "It cannot be fitted without return opened: fault_history has no option for that."
    assert text in card.limits


def test_a_column_that_no_option_leaves_out_is_reported(tmp_path):
    fleet = fleet_of_disks(1, count=400)
    fleet.came = np.where(fleet.failed, np.fmax(fleet.ended - 30, 0), 0)
    fleet.__post_init__()
    fleet.metrics, fleet.attributes = {"temperature": fleet.random.normal(size=len(fleet.at))}, {}
    card = judged_by_events(fleet.write(tmp_path / "t.tltrace"))
    refusal = "Refused: it reads leaky columns: time in service; "
    assert card.verdict.sentence.startswith(refusal)
    text = "It cannot be fitted without time in service: logistic has no option for that."
    assert text in card.limits
