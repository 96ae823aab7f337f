"""Choose a predictor and its options on folds of the training time, and on no later time."""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from torchloom_core.floor.errors import ConfigError, PluginError, TraceError
from torchloom_core.floor.suggest import nearest
from torchloom_core.interface.api import Predictor
from torchloom_core.interface.foreign import shown
from torchloom_core.lab.activation.discovery import PluginInfo
from torchloom_core.lab.evaluate.forecasts.backtest_forecasts import (
    BacktestForecasts,
    Progress,
    judge,
    part_of,
)
from torchloom_core.lab.evaluate.forecasts.scores import auprc_of
from torchloom_core.lab.fitting.build import FAULTS, METRICS, build, usual_spans_s
from torchloom_core.lab.fitting.checks import warn_missing_metrics
from torchloom_core.lab.fitting.feasibility import (
    available_bytes,
    uncounted,
    warn_frequent_forecasts,
    without_room,
)
from torchloom_core.lab.fitting.fit import fit
from torchloom_core.lab.fitting.passes import Passes, Stages
from torchloom_core.lab.fitting.time_split import FitSettings, Fitting, folds
from torchloom_core.lab.learning.card import Tried
from torchloom_core.lab.learning.forecast_score import WORDING
from torchloom_core.lab.learning.model import Model
from torchloom_core.lab.learning.skill import BASELINES
from torchloom_core.lab.trace.bundle.bundle import Bundle

_FOLDS = 3
"""With fewer folds there is no standard error."""

_log = logging.getLogger(__name__)

AUTO = "auto"
"""The value of ``--predictor`` that chooses one automatically."""
HORIZON, _SPANS_S = "horizon_s", "spans_s"


@dataclass(frozen=True)
class Candidate:
    """A predictor with options."""

    info: PluginInfo
    options: Mapping[str, Any]
    what: str

    @property
    def name(self) -> str:
        """Its unique name in reports."""
        return f"{self.info.name}, {self.what}" if self.what else self.info.name


def candidates(
    plugins: Iterable[PluginInfo], options: Mapping[str, Any], *, tick_s: float, has_metrics: bool
) -> tuple[Candidate, ...]:
    """Return the candidates: every predictor that learns, with and without telemetry.

    ``options`` are for all candidates that have them, ``horizon_s`` among them; ``tick_s`` are the
    seconds between samples. ConfigError if no predictor has an option, or horizon_s is missing.
    """
    horizon_s = options.get(HORIZON)
    if not isinstance(horizon_s, int | float) or not 0.0 < horizon_s < math.inf:
        raise ConfigError(
            f"--option: need {HORIZON}=SECONDS > 0 for all candidates, was "
            f"{'none' if horizon_s is None else repr(horizon_s)}"
        )
    learners = [
        info
        for info in plugins
        if info.kind == "predictor" and not info.problem and hasattr(info.cls, "fit")
        if HORIZON in _options_of(info)
    ]
    fields_of_all = {name for info in learners for name in _options_of(info)}
    for name in options:
        if name not in fields_of_all:
            raise ConfigError(
                f"--option: need an option of a candidate, was {name!r}"
                f"{nearest(name, fields_of_all)}"
            )
    found: list[Candidate] = []
    for info in sorted(learners, key=lambda one: one.name):
        fields = _options_of(info)
        own = {name: value for name, value in options.items() if name in fields}
        if METRICS not in fields or METRICS in options or not has_metrics:
            found += _variants(Candidate(info, own, ""))
            continue
        with_spans = dict(own)
        if _SPANS_S in fields:
            with_spans = {_SPANS_S: usual_spans_s(horizon_s, tick_s), **own}
        what = "telemetry and faults" if FAULTS in fields else ""
        found += _variants(Candidate(info, with_spans, what))
        if FAULTS in fields:
            found += _variants(Candidate(info, {**own, METRICS: []}, "faults"))
    return tuple(found)


def _variants(base: Candidate) -> Iterator[Candidate]:
    """Yield a candidate, and its variants with other options that its predictor lists."""
    yield base
    for options in _variants_of(base.info):
        if not {*options} & {*base.options}:
            named = ", ".join(f"{name} {value}" for name, value in options.items())
            what = f"{base.what}, {named}" if base.what else named
            yield Candidate(base.info, {**base.options, **options}, what)


def _variants_of(info: PluginInfo) -> Sequence[Mapping[str, Any]]:
    """Return the variants that a predictor lists; () if they are invalid."""
    named = getattr(info.cls, "variants", ())
    tables = named if isinstance(named, list | tuple) else [named]
    for table in tables:
        if not isinstance(table, Mapping) or not all(isinstance(name, str) for name in table):
            _log.warning(
                "predictor %s: need variants as a tuple of dicts of options, was %s: ignored",
                info.name, shown(named),
            )  # fmt: skip
            return ()
    return tables


def _options_of(info: PluginInfo) -> tuple[str, ...]:
    fields: tuple[str, ...] = info.cls.Options.__struct_encode_fields__ if info.cls else ()
    return fields


def fit_best(
    bundle: Bundle,
    plugins: Sequence[PluginInfo],
    options: Mapping[str, Any],
    settings: FitSettings,
    *,
    baselines: Sequence[PluginInfo] = (),
    stages: Stages = lambda _: lambda _: None,
) -> Model:
    """Choose among the predictors that learn, and fit the one that is best on earlier time.

    An option applies to all that have it. Other parameters and errors are those of
    :func:`~torchloom_core.lab.fitting.fit.fit`; TraceError also if no fold can be scored.
    """
    among = candidates(plugins, options, tick_s=settings.tick_s, has_metrics=bool(bundle.metrics))
    if why := uncounted(bundle, settings.task_of(options[HORIZON])):
        raise _unscorable(bundle, settings, f"; {why}")
    built = [*_built(bundle, among, settings)]
    warn_missing_metrics(bundle, AUTO, [plugin for one, plugin in built if METRICS in one.options])
    warn_frequent_forecasts(bundle, settings, AUTO, [plugin for _, plugin in built])
    named = [(one.name, plugin) for one, plugin in built]
    out = without_room(bundle, settings, named, available_bytes())
    among = tuple(one for one in among if one.name not in out)
    if not among:
        name, why = next(iter(out.items()))
        raise PluginError(
            f"{bundle.path}: too little free memory to fit any candidate: {name} {why}"
        )
    chosen, tried, limits = choose(bundle, among, settings, progress=stages("choose"))
    tried += tuple(Tried(candidate=name, auprc=(), why=why) for name, why in out.items())
    model = fit(
        bundle,
        chosen.info,
        chosen.options,
        settings,
        baselines=baselines,
        stages=stages,
        source="--option",
    )
    card = msgspec.structs.replace(model.card, tried=tried, limits=(*limits, *model.card.limits))
    return replace(model, card=card)


def _built(
    bundle: Bundle, among: Iterable[Candidate], settings: FitSettings
) -> Iterator[tuple[Candidate, Predictor]]:
    """Yield the candidates that can be built; :func:`judged_on` reports why one cannot."""
    for one in among:
        with suppress(ConfigError, PluginError):
            plugin, _ = build(
                bundle, one.info, one.options, tick_s=settings.tick_s, source="--option"
            )
            yield one, plugin


def choose(
    bundle: Bundle,
    among: Sequence[Candidate],
    settings: FitSettings,
    *,
    progress: Progress = lambda _: None,
) -> tuple[Candidate, tuple[Tried, ...], tuple[str, ...]]:
    """Return the candidate with the greatest mean AUPRC over the folds, all results, and limits.

    One of ``BASELINES`` is preferred if the best exceeds it by no more than the standard error of
    the difference over the folds (Breiman, Friedman, Olshen and Stone, "Classification and
    Regression Trees", 1984, section 3.4.3). A fold that no candidate can be scored on is left out.
    The limits name such folds, and a baseline that was preferred. TraceError, with the first
    reason, if no fold can be scored.
    """
    parts = list(folds(bundle, settings))
    found = [
        judged_on(
            part, among, replace(settings, until_ns=until_ns), part_of(progress, at, len(parts))
        )
        for at, (part, until_ns) in enumerate(parts)
    ]
    judged = [fold for fold in found if any(isinstance(one, float) for one in fold)]
    tried = [
        _tried(candidate, [fold[number] for fold in judged])
        for number, candidate in enumerate(among)
    ]
    best = max(tried, key=lambda one: one.mean, default=None)
    if best is None or not best.mean > 0:
        whys = (f": {why}" for fold in found if (why := _why_not(fold)))
        raise _unscorable(bundle, settings, next(whys, " in any of them"))
    taken = _as_good_and_simpler(best, among, tried)
    chosen = next(one for one in among if one.name == taken.candidate)
    limits = [
        f"Fold {at} of {len(found)} was not used to choose the predictor: "
        f"{_why_not(fold) or f'it has no {WORDING[settings.task].one}'}."
        for at, fold in enumerate(found, 1)
        if fold not in judged
    ]
    if taken is not best:
        limits.append(
            f"{best.candidate} is above {taken.candidate} by {best.mean - taken.mean:.3g} on the "
            "folds, which is no more than its standard error: the simpler one was chosen."
        )
    return chosen, tuple(tried), tuple(limits)


def _as_good_and_simpler(best: Tried, among: Sequence[Candidate], tried: Sequence[Tried]) -> Tried:
    """Return the best baseline within the folds' error of ``best``; without one, ``best``."""
    baselines = [
        one
        for candidate, one in zip(among, tried, strict=True)
        if candidate.info.name in BASELINES and _is_near(one, best)
    ]
    return max(baselines, key=lambda one: one.mean, default=best)


def _is_near(one: Tried, best: Tried) -> bool:
    """Return whether the best is better by no more than the standard error over the folds."""
    reached = np.array([one.auprc, best.auprc], dtype=float)
    if one is best or np.isnan(reached).any() or len(one.auprc) < _FOLDS:
        return one is best
    below = reached[1] - reached[0]
    return bool(below.mean() <= below.std(ddof=1) / np.sqrt(len(below)))


def _unscorable(bundle: Bundle, settings: FitSettings, why: str) -> TraceError:
    return TraceError(
        f"{bundle.path}: need {WORDING[settings.task].many} in the folds of the training time to "
        f"choose a predictor, was none{why}"
    )


def _tried(candidate: Candidate, reached: Sequence[float | str | None]) -> Tried:
    return Tried(
        candidate=candidate.name,
        auprc=tuple(one if isinstance(one, float) else None for one in reached),
        why=_why_not(reached[::-1]),
    )


def _why_not(reached: Sequence[float | str | None]) -> str:
    return next((one for one in reached if isinstance(one, str)), "")


def judged_on(
    part: Bundle, among: Sequence[Candidate], settings: FitSettings, progress: Progress
) -> list[float | str | None]:
    """Return the AUPRC of each candidate on a fold, or why not; equal paces share two passes."""
    found: list[float | str | None] = [None] * len(among)
    paces: dict[float, tuple[Fitting, dict[int, Predictor]]] = {}
    for number, candidate in enumerate(among):
        try:
            plugin, _ = build(
                part, candidate.info, candidate.options, tick_s=settings.tick_s, source="--option"
            )
            fitting = Fitting(part, settings, plugin)
        except (ConfigError, PluginError, TraceError) as error:
            found[number] = str(error).removeprefix(f"{part.path}: ")
        else:
            paces.setdefault(fitting.every_s, (fitting, {}))[1][number] = plugin
    for at, (fitting, plugins) in enumerate(paces.values()):
        for number, one in _reached(fitting, plugins, part_of(progress, at, len(paces))).items():
            found[number] = one
    return found


def _reached(
    fitting: Fitting, plugins: Mapping[int, Predictor], progress: Progress
) -> dict[int, float | str | None]:
    """Return the AUPRC of each predictor on a fold, or why it has none."""

    def stages(name: str) -> Progress:
        done = {"pass": 0, "learn": 1, "forecast": 2}.get(name.split()[0])
        return part_of(progress, done, 3) if done is not None else lambda _: None

    passes = Passes(fitting, list(plugins.values()), stages)
    passes.learn()
    forecasts = passes.forecast()
    return {
        number: _auprc(fitting, forecasts[at]) if at in forecasts else str(passes.refused[at])
        for at, number in enumerate(plugins)
    }


def _auprc(fitting: Fitting, forecasts: BacktestForecasts) -> float | None:
    judged = judge(fitting.bundle, forecasts, fitting.task)
    return auprc_of(judged).value if (judged.outcome == 1.0).any() else None
