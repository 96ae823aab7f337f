"""Score predictors on the part of a trace that nothing of theirs was taken from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from torchloom_core.config import Config
from torchloom_core.errors import PluginError, TraceError
from torchloom_core.evaluate.alarms import Judged, threshold_for
from torchloom_core.evaluate.forecast_scores import score
from torchloom_core.evaluate.hindcasts import Progress, day_text, hindcasts, judge, random_scores
from torchloom_core.evaluate.labels import Task
from torchloom_core.evaluate.leaks import refuse_trained
from torchloom_core.evaluate.results import ForecastScore
from torchloom_core.evaluate.runs import installed
from torchloom_core.evaluate.skill import RANDOM, with_skill
from torchloom_core.models.model import Model
from torchloom_core.plugin import Predictor
from torchloom_core.plugins import activate
from torchloom_core.trace.bundle import Bundle

UNTIL_SHARE = 0.6
"""The part of a trace on which thresholds are set, unless it is said how long that is."""


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How predictors are scored.

    Attributes
    ----------
    until_ns : int, optional
        Time from here on is scored; absent: after what a model was fitted on, or after the
        first 60 % of the trace.
    false_alarms_per_node_day : float
        The budget for the threshold of a predictor without a model.
    resamples : int
        How many for each bootstrap.
    """

    until_ns: int | None = None
    false_alarms_per_node_day: float = 0.01
    seed: int = 0
    resamples: int = 2000


@dataclass(frozen=True, eq=False)
class _Part:
    """One predictor's forecasts on the scored time."""

    name: str
    judged: Judged
    threshold: float
    threshold_from: str


def split_ns(bundle: Bundle) -> int:
    """Return where the scored part begins if nobody says it."""
    manifest = bundle.manifest
    return manifest.start_ns + int(UNTIL_SHARE * (manifest.end_ns - manifest.start_ns))


def score_predictors(
    bundle: Bundle,
    tables: Mapping[str, dict[str, Any]],
    config: Config,
    scoring: Scoring,
    *,
    source: str = "torchloom.toml",
    progress: Progress | None = None,
) -> tuple[ForecastScore, ...]:
    """Return the score of every predictor, each against a random one and the others.

    Parameters
    ----------
    tables : mapping
        As under ``[predictors]``; with ``model`` it is a fitted one.

    Raises
    ------
    ConfigError, ModelError
        If a table or a model is wrong.
    LeakError
        If time is to be scored on which a model was fitted.
    PluginError
        If a predictor breaks its contract, or never judges.
    """
    parts = [
        _part(bundle, name, table, config, scoring, source, progress)
        for name, table in tables.items()
    ]
    return tuple(_scored(part, parts, scoring) for part in parts)


def _part(
    bundle: Bundle,
    name: str,
    table: dict[str, Any],
    config: Config,
    scoring: Scoring,
    source: str,
    progress: Progress | None,
) -> _Part:
    if "model" in table:
        return _of_model(bundle, name, table, config, scoring, source, progress)
    predictor = _built(name, table, config, source)
    until_ns = split_ns(bundle) if scoring.until_ns is None else scoring.until_ns
    task = Task(horizon_s=predictor.horizon_s, repair_s=config.evaluate.repair_s)
    said = hindcasts(
        bundle,
        predictor,
        tick_s=config.evaluate.tick_s,
        costs=config.costs,
        progress=progress,
    )
    earlier = said.between(bundle.manifest.start_ns, until_ns - task.horizon_ns)
    later = said.between(until_ns, bundle.manifest.end_ns)
    if not len(earlier.times_ns) or not len(later.times_ns):
        raise TraceError(
            f"{bundle.path}: need forecasts of {name} a horizon before {day_text(bundle, until_ns)}"
            f" and after it, was {len(earlier.times_ns)} and {len(later.times_ns)}"
        )
    threshold = threshold_for(
        judge(bundle, earlier, task, known_until_ns=until_ns), scoring.false_alarms_per_node_day
    )
    given = f"before {day_text(bundle, until_ns)}"
    return _Part(name, judge(bundle, later, task), threshold, given)


def _of_model(
    bundle: Bundle,
    name: str,
    table: dict[str, Any],
    config: Config,
    scoring: Scoring,
    source: str,
    progress: Progress | None,
) -> _Part:
    info = Model.load(Path(table["model"])).info
    until_ns = info.until_ns if scoring.until_ns is None else scoring.until_ns
    until_ns = max(until_ns, bundle.manifest.start_ns)
    refuse_trained(str(table["model"]), info.until_ns, until_ns)
    task = Task(
        horizon_s=info.horizon_s,
        kind=info.task,
        lead_s=info.lead_s,
        kinds=info.kinds,
        repair_s=config.evaluate.repair_s,
    )
    said = hindcasts(
        bundle,
        _built(name, table, config, source),
        tick_s=info.tick_s,
        start_ns=until_ns,
        costs=config.costs,
        progress=progress,
    )
    return _Part(name, judge(bundle, said, task), info.threshold, info.threshold_from)


def _built(name: str, table: dict[str, Any], config: Config, source: str) -> Predictor:
    weaver = replace(config.weaver, tick_s=config.evaluate.tick_s)
    alone = replace(config, weaver=weaver, policies={}, predictors={name: table})
    plugins = activate(alone, installed(), source)
    if plugins.failed:
        raise PluginError(plugins.failed[0].detail)
    return plugins.predictors[name]


def _scored(part: _Part, parts: Sequence[_Part], scoring: Scoring) -> ForecastScore:
    others = {RANDOM: random_scores(part.judged.score.shape, scoring.seed)}
    for other in parts:
        alike = np.array_equal(other.judged.times_ns, part.judged.times_ns)
        if other is not part and alike:
            others[other.name] = other.judged.score
    return with_skill(
        score(
            part.judged,
            predictor=part.name,
            threshold=part.threshold,
            threshold_from=part.threshold_from,
            others=others,
            resamples=scoring.resamples,
            seed=scoring.seed,
        )
    )
