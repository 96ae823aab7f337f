"""Score predictors on the part of a trace that they were not fitted on."""

import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import PluginError, TraceError
from torchloom_core.interface.api import Predictor
from torchloom_core.lab.activation.activation import activate
from torchloom_core.lab.activation.discovery import installed
from torchloom_core.lab.evaluate.forecasts.alarms import Judged, threshold_for
from torchloom_core.lab.evaluate.forecasts.altered_future import refuse_future
from torchloom_core.lab.evaluate.forecasts.backtest_forecasts import (
    BacktestForecasts,
    Progress,
    backtest_forecasts,
    day_text,
    judge,
    pace_s,
    part_of,
    random_scores,
    refuse_too_many,
)
from torchloom_core.lab.evaluate.forecasts.labels import Task
from torchloom_core.lab.evaluate.forecasts.leaks import find_leaky_inputs
from torchloom_core.lab.evaluate.forecasts.scores import Pool, score
from torchloom_core.lab.evaluate.forecasts.training_trace import (
    other_repair,
    refuse_trained,
    task_of,
    was_fitted_on,
)
from torchloom_core.lab.evaluate.goodput.candidates import Forecaster
from torchloom_core.lab.learning.forecast_score import LEAKY_COLUMN, ForecastScore
from torchloom_core.lab.learning.model import Model
from torchloom_core.lab.learning.skill import RANDOM, leaky_names, with_verdict
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.feed.watched import watch
from torchloom_core.live.kernel.plugins.host import ActivePlugins

_log = logging.getLogger(__name__)

UNTIL_SHARE = 0.6
"""Share of a trace on which thresholds are set, unless ``until_ns`` is given."""

_CHECKED = 20
"""One in this many forecasts is repeated on a trace with an altered future."""


@dataclass(frozen=True, eq=False)
class _Part:
    """One predictor's forecasts on the scored time, and the budget of its threshold."""

    name: str
    judged: Judged
    threshold: float
    threshold_from: str
    allowed_per_node_day: float
    flags: tuple[str, ...] = ()


def split_ns(bundle: Bundle) -> int:
    """Return the default start of the scored time."""
    manifest = bundle.manifest
    return manifest.start_ns + int(UNTIL_SHARE * (manifest.end_ns - manifest.start_ns))


def alone(one: Forecaster, config: Config, source: str) -> ActivePlugins:
    """Return one predictor, built as a backtest builds it, without other plugins."""
    weaver = replace(config.weaver, tick_s=config.evaluate.tick_s)
    own = replace(config, weaver=weaver, policies={}, predictors={one.name: one.table})
    return activate(own, installed(), source, may_detect=True)


def scorer_of(
    bundle: Bundle,
    forecasters: Sequence[Forecaster],
    config: Config,
    *,
    until_ns: int | None = None,
    false_alarms_per_node_day: float = 0.01,
    source: str = "torchloom.toml",
) -> "Scorer":
    """Return the scorer of predictors on a trace, all on the same time.

    It starts at ``until_ns``; absent: at the end of every model's training, and after 60 % of the
    trace if a predictor has no model, whose threshold the budget of false alarms sets. Everything
    that can be checked is checked before the first forecast: ConfigError or ModelError if a table
    or a model is wrong, LeakError if the scored time includes a model's training, PluginError if a
    predictor cannot be built, TraceError if the trace has too little time for one of them.
    """
    models = {
        one.label: Model.load(Path(one.table["model"]))
        for one in forecasters
        if "model" in one.table
    }
    own = {label for label, model in models.items() if was_fitted_on(model, bundle)}
    from_ns = until_ns
    if from_ns is None:
        starts = {label: bundle.manifest.start_ns for label in models}
        starts |= {label: models[label].info.until_ns for label in own}
        from_ns = max(starts.get(one.label, split_ns(bundle)) for one in forecasters)
    scorer = Scorer(
        bundle, forecasters, models, own, config, false_alarms_per_node_day, from_ns, source
    )
    for one in forecasters:
        scorer.check(one)
    return scorer


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores predictors from ``from_ns`` on, each against a random score and the others.

    ``fitted_here`` are the labels of the models that were fitted on this trace.
    """

    bundle: Bundle
    forecasters: Sequence[Forecaster]
    models: Mapping[str, Model]
    fitted_here: Set[str]
    config: Config
    false_alarms_per_node_day: float
    from_ns: int
    source: str

    def scores(
        self, progress: Progress = lambda _: None, pool: Pool | None = None
    ) -> tuple[ForecastScore, ...]:
        """Run all predictors, and return their scores; ``pool`` collects the scored samples.

        Some of their forecasts are repeated on a trace with an altered future: LeakError if one
        depends on the future. PluginError if a predictor breaks its contract, or gives no forecast.
        """
        parts = [
            self._part(one, part_of(progress, at, len(self.forecasters)))
            for at, one in enumerate(self.forecasters)
        ]
        if pool is not None:
            for part in parts:
                pool.add(part.name, part.judged)
        return tuple(_scored(part, parts) for part in parts)

    def check(self, one: Forecaster) -> None:
        """Build a predictor, and refuse it if the trace has too little time to score it."""
        model = self.models.get(one.label)
        bundle, from_ns = self.bundle, self.from_ns
        manifest, predictor = bundle.manifest, self._built(one)
        begin_ns, tick_s = manifest.start_ns, self.config.evaluate.tick_s
        if model is not None:
            begin_ns, tick_s = from_ns, model.info.tick_s
            if note := other_repair(one.label, model, self.config.evaluate.repair_s):
                _log.warning("%s", note)
            if one.label in self.fitted_here:
                refuse_trained(str(one.table["model"]), model.info.until_ns, from_ns)
        length_ns, every_s = manifest.end_ns - begin_ns, pace_s(predictor, tick_s)
        refuse_too_many(one.name, length_ns, every_s, len(watch(bundle).ids))
        every_ns, horizon_ns = round(every_s * SECOND_NS), round(predictor.horizon_s * SECOND_NS)
        moments = begin_ns + every_ns * np.arange(1, length_ns // every_ns + 1, dtype=np.int64)
        before = int(np.count_nonzero(moments <= from_ns - horizon_ns))
        # The outcome of a forecast is known a horizon later, that of a detection at once.
        detects = model is not None and model.info.task == "detect"
        last_ns = manifest.end_ns - (0 if detects else horizon_ns)
        after = int(np.count_nonzero((moments >= from_ns) & (moments <= last_ns)))
        day = day_text(bundle, from_ns)
        if model is None and not (before and after):
            raise TraceError(
                f"{bundle.path}: {one.label} needs forecasts at least a horizon before {day}, and "
                f"from {day} to a horizon before the end; the trace allows {before} and {after}"
            )
        if not after:
            until = "the end" if detects else "a horizon before the end"
            raise TraceError(
                f"{bundle.path}: {one.label} needs forecasts from {day} to {until}; the trace "
                f"allows none"
            )

    def _part(self, one: Forecaster, progress: Progress) -> _Part:
        """Return the forecasts of a predictor, and the threshold: of its model, or set here."""
        model, bundle, from_ns = self.models.get(one.label), self.bundle, self.from_ns
        tick_s, needs = self.config.evaluate.tick_s, self._built(one).needs
        if model is None:
            horizon_s, start_ns = self._built(one).horizon_s, None
            task = Task(horizon_s=horizon_s, repair_s=self.config.evaluate.repair_s)
        else:
            task, tick_s, start_ns = task_of(model), model.info.tick_s, from_ns

        def run(trace: Bundle, end_ns: int | None, progress: Progress) -> BacktestForecasts:
            return backtest_forecasts(
                trace,
                self._built(one),
                tick_s=tick_s,
                repair_s=task.repair_s,
                start_ns=start_ns,
                end_ns=end_ns,
                costs=self.config.costs,
                progress=progress,
                shows=task.shows,
            )

        forecasts = run(bundle, None, progress)
        refuse_future(
            f"predictor {one.label}",
            forecasts,
            bundle,
            lambda other, end_ns: run(other, end_ns, lambda _: None),
            after_ns=_checked_until_ns(forecasts),
        )
        leaks = find_leaky_inputs(
            bundle,
            needs,
            task,
            tick_s=tick_s,
            every_s=forecasts.every_s,
            known_before=(model.info.known_before or ()) if model else (),
        )
        if model is not None:
            return _Part(
                one.label,
                judge(bundle, forecasts, task),
                model.info.threshold,
                model.info.threshold_from,
                model.info.false_alarms_per_node_day,
                model.info.calibration.flags + _leaky(model, leaks),
            )
        allowed = self.false_alarms_per_node_day
        threshold = threshold_for(judge(bundle, forecasts, task, known_until_ns=from_ns), allowed)
        later = judge(bundle, forecasts.between(from_ns, bundle.manifest.end_ns), task)
        before = f"before {day_text(bundle, from_ns)}"
        return _Part(one.label, later, threshold, before, allowed, leaks)

    def _built(self, one: Forecaster) -> Predictor:
        plugins = alone(one, self.config, self.source)
        if plugins.failed:
            raise PluginError(plugins.failed[0].detail)
        return plugins.predictors[one.name]


def _leaky(model: Model, here: tuple[str, ...]) -> tuple[str, ...]:
    """Return the flags of leaky inputs on the training trace, and of others on the scored one."""
    flags = [flag for flag in model.card.score.flags if flag.startswith(LEAKY_COLUMN)]
    named = leaky_names(flags)
    return (*flags, *(flag for flag in here if not {*leaky_names([flag])} & {*named}))


def _checked_until_ns(forecasts: BacktestForecasts) -> int:
    """Return the end of the repeated forecasts: a twentieth, from the first non-NaN one."""
    first = int(np.argmax((~np.isnan(forecasts.score)).any(axis=1)))
    last = min(first + len(forecasts.times_ns) // _CHECKED, len(forecasts.times_ns) - 1)
    return int(forecasts.times_ns[last])


def _scored(part: _Part, parts: Sequence[_Part]) -> ForecastScore:
    others = {RANDOM: random_scores(part.judged.score.shape, seed=0)}
    for other in parts:
        same_times = np.array_equal(other.judged.times_ns, part.judged.times_ns)
        if other is not part and same_times:
            others[other.name] = other.judged.score
    return with_verdict(
        score(
            part.judged,
            predictor=part.name,
            threshold=part.threshold,
            threshold_from=part.threshold_from,
            others=others,
            allowed_per_node_day=part.allowed_per_node_day,
            flags=part.flags,
        )
    )
