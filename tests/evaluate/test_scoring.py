"""A twentieth of the scored forecasts is repeated on a trace with an altered future."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from tests.evaluate.episodes import CONFIG, HOUR_NS, JOB, some_events, write
from tests.evaluate.hindsight import disks
from tests.fitting.models import changed
from torchloom_core.floor.errors import ConfigError, LeakError, TraceError
from torchloom_core.lab.activation.discovery import installed
from torchloom_core.lab.evaluate.forecasts.scores import Pool
from torchloom_core.lab.evaluate.forecasts.scoring import (
    _leaky,
    scorer_of,
    split_ns,
)
from torchloom_core.lab.evaluate.goodput.candidates import Forecaster
from torchloom_core.lab.fitting.fit import fit
from torchloom_core.lab.fitting.time_split import FitSettings
from torchloom_core.lab.learning.skill import leaky, verdict
from torchloom_core.lab.trace.bundle.bundle import Bundle

LATE = '''
"""Gives no forecast at first, then a constant one, and then a different one."""

import itertools

import msgspec
import numpy as np

from torchloom_core.plugin import Hazard, hookimpl

CALLS = itertools.count(1)


class Late:
    name = "late"
    horizon_s = 21_600.0
    every_s = 3600.0
    needs = ()

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        silent: int
        same: int

    def __init__(self, options):
        self.options = options
        self.calls = 0

    def forecast(self, view):
        self.calls += 1
        if view.costs.restart_s != 240.0:
            raise ValueError("need the prices of the config")
        judged = self.calls - self.options.silent
        another = next(CALLS) / 1e6
        says = np.nan if judged < 1 else 0.5 if judged <= self.options.same else another
        return Hazard(probability=np.full(len(view), says))


@hookimpl
def torchloom_register(registry):
    registry.predictor(Late)
'''


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "small.tltrace"
    return write(path, some_events(count=60))


@pytest.fixture
def late(tmp_path, monkeypatch):
    """Install the predictor, as a package is."""
    (tmp_path / "late_predictor.py").write_text(LATE)
    metadata = tmp_path / "late-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[torchloom]\nlate = late_predictor\n")
    monkeypatch.syspath_prepend(tmp_path)
    installed.cache_clear()
    yield
    installed.cache_clear()
    sys.modules.pop("late_predictor", None)


def scored(bundle, *, name="late", config=CONFIG, progress=lambda _: None, budget=0.01, **table):
    tested = [Forecaster(label=name, name=name, table=table)]
    scorer = scorer_of(bundle, tested, config, false_alarms_per_node_day=budget)
    return scorer.scores(progress)


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize(("silent", "same"), [(0, 0), (0, 7), (10, 7), (143, 0)])
def test_a_twentieth_of_the_forecasts_from_the_first_on_is_looked_at(bundle, silent, same):
    with pytest.raises(LeakError, match="predictor late: future_feature: "):
        scored(bundle, silent=silent, same=same)


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("silent", [0, 10])
def test_later_forecasts_are_ignored(bundle, silent):
    (score,) = scored(bundle, silent=silent, same=8)
    assert (score.predictor, score.threshold_from) == ("late", "before 3.6 d")


@pytest.mark.slow
def test_the_inputs_of_a_predictor_without_a_model_are_checked_for_leaks(tmp_path):
    fleet = disks(0)
    share = (fleet.at - fleet.came[fleet.of]) / np.fmax(fleet.ended - fleet.came, 1)[fleet.of]
    fleet.metrics = {"share": share, "temperature": fleet.metrics["temperature"]}
    trace = fleet.write(tmp_path / "disks.tltrace")
    config = replace(CONFIG, evaluate=replace(JOB, tick_s=86_400.0))
    days = {"every_s": 86_400.0, "horizon_s": 7 * 86_400.0, "window_s": 10 * 86_400.0}
    table = {"name": "trend", "level": 0.9, **days}
    (score,) = scored(trace, config=config, metric="share", **table)
    assert leaky(score) == ("share",)
    assert verdict(score).level == score.verdict == "refused"
    (score,) = scored(trace, config=config, metric="temperature", **table)
    assert leaky(score) == ()


def weekly(fleet, path, *, known_before=()):
    """Return a logistic regression fitted on a fleet's trace, with what it was saved as."""
    trace = fleet.write(path.with_suffix(".tltrace"))
    (logistic,) = (info for info in installed() if info.name == "logistic")
    settings_of = {"horizon_s": 7 * 86_400.0, "every_s": 86_400.0, "attributes": [], "groups": []}
    settings = FitSettings(
        until_ns=trace.manifest.start_ns + 60 * 24 * HOUR_NS, tick_s=86_400.0,
        repair_s=86_400.0, known_before=known_before,
    )  # fmt: skip
    fit(trace, logistic, settings_of, settings).save(path.with_suffix(".tlmodel"))
    return trace, {"name": "logistic", "model": str(path.with_suffix(".tlmodel"))}


def with_only(fleet, **metrics):
    fleet.metrics, fleet.attributes, fleet.notes = metrics, {}, []
    return fleet


@pytest.mark.slow
@pytest.mark.parametrize("known_before", [(), ("x",)], ids=["undeclared", "known before"])
def test_the_inputs_of_a_model_of_another_fleet_are_checked_for_leaks(tmp_path, known_before):
    few, many = disks(1, count=40), disks(2)
    noise = few.random.normal(0, 1, len(few.at))
    _, table = weekly(with_only(few, x=noise), tmp_path / "few", known_before=known_before)
    trace = with_only(many, x=1.0 * many.ended[many.of]).write(tmp_path / "many.tltrace")
    (score,) = scored(
        trace, config=replace(CONFIG, evaluate=replace(JOB, tick_s=86_400.0)), **table
    )
    assert leaky(score) == (() if known_before else ("x",))
    assert score.from_ns == trace.manifest.start_ns + 24 * HOUR_NS


HISTORY = {"name": "fault_history", "every_s": 3600.0, "horizon_s": 21_600.0}


def with_events(bundle, events):
    other, rows = Bundle.open(bundle.path), tuple(events)
    other.events = lambda: rows
    return other


def test_a_node_with_an_unknown_end_is_away_for_the_configured_repair(bundle):
    unknown = with_events(bundle, (replace(one, t_resolved=None) for one in bundle.events()))
    short, long = (
        scored(unknown, config=replace(CONFIG, evaluate=replace(JOB, repair_s=away_s)), **HISTORY)[
            0
        ]
        for away_s in (60.0, 86_400.0)
    )
    assert short.samples > long.samples


def test_the_threshold_ignores_failures_available_after_the_split(bundle):
    until_ns = split_ns(bundle)
    settings_of, hidden = [], []
    for number, one in enumerate(bundle.events()):
        late = number % 2 and one.t_event < until_ns
        settings_of.append(replace(one, t_avail=until_ns + HOUR_NS) if late else one)
        hidden += [] if late else [one]
    known, unknown, soon = (
        scored(with_events(bundle, of), budget=0.05, **HISTORY)[0].threshold
        for of in (settings_of, hidden, bundle.events())
    )
    assert known == unknown
    assert known != soon


def test_predictors_with_other_times_are_not_compared_but_pooled(bundle):
    tables = {f"{hours} h": {"every_s": 3600.0 * hours, "horizon_s": 21_600.0} for hours in (1, 2)}
    tested = [Forecaster(label=label, name="fault_history", table=table)
              for label, table in tables.items()]  # fmt: skip
    pool = Pool()
    scores = scorer_of(bundle, tested, CONFIG).scores(pool=pool)
    assert [set(one.versus) for one in scores] == [{"random"}] * 2
    assert [pool.auprc(label) for label in tables] == [one.auprc.value for one in scores]


def test_leaks_of_the_training_trace_are_flagged_once_with_those_of_the_scored_one():
    flags = ("leaky_column: x: at home", "suspicious_score: y")
    model = SimpleNamespace(card=SimpleNamespace(score=SimpleNamespace(flags=flags)))
    here = ("leaky_column: x: here", "leaky_column: z: here")
    assert _leaky(model, here) == (flags[0], here[1])


def test_a_predictor_is_scored_without_the_policies_of_the_config(bundle):
    crowded = replace(CONFIG, policies={"unknown": {}})
    assert scored(bundle, config=crowded, **HISTORY) == scored(bundle, **HISTORY)


def history(bundle, until_h, every_s=3600.0, **table):
    table = table or {"every_s": every_s, "horizon_s": 21_600.0}
    tested = [Forecaster(label="scored", name="fault_history", table=table)]
    config = replace(CONFIG, evaluate=replace(JOB, tick_s=every_s))
    from_ns = bundle.manifest.start_ns + round(until_h * HOUR_NS)
    return scorer_of(bundle, tested, config, until_ns=from_ns)


@pytest.mark.parametrize(("until_h", "found"), [(6, "0 and 133"), (139, "133 and 0")])
def test_a_split_that_leaves_no_moment_before_it_or_after_it_is_refused(bundle, until_h, found):
    """Of 144 hours, and six that a forecast is for."""
    day = f"{until_h / 24:.4g} d"
    need = f"scored needs forecasts at least a horizon before {day}, and from {day} to a horizon"
    with pytest.raises(TraceError, match=f": {need} before the end; the trace allows {found}$"):
        history(bundle, until_h)
    history(bundle, until_h + (1 if until_h < 72 else -1))


@pytest.fixture(scope="module")
def models(bundle, tmp_path_factory):
    """A forecasting model and a detecting one, fitted on half of the trace."""
    folder = tmp_path_factory.mktemp("models")
    (history,) = (info for info in installed() if info.name == "fault_history")
    until_ns = bundle.manifest.start_ns + 72 * HOUR_NS
    settings = FitSettings(until_ns=until_ns, tick_s=3600.0, repair_s=86_400.0)
    settings_of = {"every_s": 3600.0, "horizon_s": 21_600.0}
    model = fit(bundle, history, settings_of, settings)
    changed(model, task="forecast").save(folder / "forecast.tlmodel")
    changed(model, task="detect").save(folder / "detect.tlmodel")
    return folder


@pytest.mark.parametrize(
    ("task", "last_h", "need"),
    [("forecast", 137, "a horizon before the end"), ("detect", 143, "the end")],
)
def test_a_model_is_scored_to_the_last_time_with_a_known_outcome(
    bundle, models, task, last_h, need
):
    """A detection has its outcome at once, a forecast six hours later; 144 hours are watched."""
    model = str(models / f"{task}.tlmodel")
    history(bundle, last_h, model=model)
    day = f"{(last_h + 0.5) / 24:.4g} d"
    with pytest.raises(
        TraceError, match=f"scored needs forecasts from {day} to {need}; the trace allows none$"
    ):
        history(bundle, last_h + 0.5, model=model)


def test_a_detector_does_not_see_its_target_events(bundle, models):
    settings_of = with_events(bundle, (replace(one, fatal=False) for one in bundle.events()))
    (score,) = history(settings_of, 72, model=str(models / "detect.tlmodel")).scores()
    assert score.auprc.value == pytest.approx(score.prevalence)


def test_a_wrong_table_is_refused_by_the_file_it_is_in(bundle):
    with pytest.raises(ConfigError, match=r"^torchloom\.toml: predictors\.fault_history\.every: "):
        scored(bundle, every=1.0, **HISTORY)
