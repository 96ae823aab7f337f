"""Choose a predictor and its options on folds of the time that is learned from, and on no other.

Each fold is the trace as it was known at the fold's end: a candidate is fitted and calibrated on
the earlier part of it, as it would have been then, and judged on the rest.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from torchloom_core.activation.discovery import PluginInfo
from torchloom_core.errors import ConfigError, PluginError, TraceError
from torchloom_core.evaluate.forecasts.hindcasts import Progress, judge
from torchloom_core.evaluate.forecasts.scores import auprc_of
from torchloom_core.fitting.baselines import usual_spans_s
from torchloom_core.fitting.build import METRICS, build
from torchloom_core.fitting.earlier_part import EarlierPart
from torchloom_core.fitting.fit import Stages, check, fit_checked, say_unread
from torchloom_core.fitting.hints import uncounted
from torchloom_core.fitting.stages import FitSettings, Fitting
from torchloom_core.learning.card import Tried
from torchloom_core.learning.model import Model
from torchloom_core.plugin.api import Predictor
from torchloom_core.suggest import nearest
from torchloom_core.trace.bundle.bundle import Bundle

AUTO = "auto"
"""The name under which a predictor is asked for that is yet to be chosen."""

_CUTS, _WIDTH = (0.4, 0.6, 0.8), 0.2
"""Where the scored part of each fold begins, and how long it is, as shares of the time."""
_FAILURES = "need failures in the folds of the training time to choose a predictor by"
_FAULTS, _HORIZON, _SPANS_S = "half_lives_s", "horizon_s", "spans_s"


@dataclass(frozen=True)
class Candidate:
    """A predictor with options, as it may be chosen."""

    info: PluginInfo
    options: Mapping[str, Any]
    what: str

    @property
    def name(self) -> str:
        """How it is told apart from the others."""
        return f"{self.info.name}, {self.what}" if self.what else self.info.name


def fit_best(
    bundle: Bundle,
    plugins: Sequence[PluginInfo],
    told: Mapping[str, Any],
    settings: FitSettings,
    *,
    baselines: Sequence[PluginInfo] = (),
    stages: Stages = lambda _: lambda _: None,
) -> Model:
    """Choose among the predictors that learn, and fit the one that is best on earlier time.

    Parameters
    ----------
    told, baselines, stages
        As in :func:`~torchloom_core.fitting.fit.fit`; an option is for all that have it.

    Raises
    ------
    ConfigError, LeakError, PluginError, TraceError
        As there, and if there is nothing to choose by.
    """
    check(bundle, settings)
    among = candidates(plugins, told, tick_s=settings.tick_s, has_metrics=bool(bundle.metrics))
    if why := uncounted(bundle, settings.task_of(told[_HORIZON])):
        raise TraceError(f"{bundle.path}: {_FAILURES}, was none; {why}")
    say_unread(bundle, AUTO, _built(bundle, among, settings))
    chosen, tried = choose(bundle, among, settings, progress=stages("choose"))
    model = fit_checked(
        bundle,
        chosen.info,
        chosen.options,
        settings,
        baselines=baselines,
        stages=stages,
        source="--option",
    )
    return replace(model, card=msgspec.structs.replace(model.card, tried=tried))


def candidates(
    plugins: Iterable[PluginInfo], told: Mapping[str, Any], *, tick_s: float, has_metrics: bool
) -> tuple[Candidate, ...]:
    """Return what may be chosen: what learns how likely a failure is, with and without telemetry.

    Parameters
    ----------
    told : mapping
        Options for all that have them, horizon_s among them. Spans are the usual ones, unless
        told.
    tick_s : float
        Seconds between samples.

    Raises
    ------
    ConfigError
        If no predictor has an option that was told, or nobody said how far ahead to look.
    """
    horizon_s = told.get(_HORIZON)
    if not isinstance(horizon_s, int | float) or not 0.0 < horizon_s < math.inf:
        raise ConfigError(
            f"--option: need {_HORIZON}=SECONDS > 0, the same for all that are tried, was "
            f"{'none' if horizon_s is None else repr(horizon_s)}"
        )
    learners = [
        info
        for info in plugins
        if info.kind == "predictor" and not info.problem and hasattr(info.cls, "fit")
        if _HORIZON in _options_of(info)
    ]
    known = {name for info in learners for name in _options_of(info)}
    for name in told:
        if name not in known:
            raise ConfigError(
                f"--option: need one of a predictor that learns, was {name!r}{nearest(name, known)}"
            )
    found: list[Candidate] = []
    for info in sorted(learners, key=lambda one: one.name):
        fields = _options_of(info)
        own = {name: value for name, value in told.items() if name in fields}
        if METRICS not in fields or METRICS in told or not has_metrics:
            found.append(Candidate(info, own, ""))
            continue
        with_spans = dict(own)
        if _SPANS_S in fields:
            with_spans = {_SPANS_S: usual_spans_s(horizon_s, tick_s), **own}
        what = "telemetry and faults" if _FAULTS in fields else ""
        found.append(Candidate(info, with_spans, what))
        if _FAULTS in fields:
            found.append(Candidate(info, {**own, METRICS: []}, "faults"))
    return tuple(found)


def _built(
    bundle: Bundle, among: Iterable[Candidate], settings: FitSettings
) -> Iterator[Predictor]:
    """Yield those that are told what to read; why one cannot be built, its trial says."""
    for one in among:
        if METRICS not in one.options:
            continue
        with suppress(ConfigError, PluginError):
            yield build(bundle, one.info, one.options, tick_s=settings.tick_s, source="--option")[0]


def _options_of(info: PluginInfo) -> tuple[str, ...]:
    fields: tuple[str, ...] = info.cls.Options.__struct_encode_fields__ if info.cls else ()
    return fields


def choose(
    bundle: Bundle,
    among: Sequence[Candidate],
    settings: FitSettings,
    *,
    progress: Progress = lambda _: None,
) -> tuple[Candidate, tuple[Tried, ...]]:
    """Return the candidate with the greatest mean AUPRC over the folds, and what was tried.

    Raises
    ------
    TraceError
        If none can be judged on any fold, with the first reason.
    """
    folds = list(_folds(bundle, settings))
    tried: list[Tried] = []
    for number, candidate in enumerate(among):
        reached: list[float] = []
        why = ""
        for at, (part, until_ns) in enumerate(folds):
            progress((number + at / len(folds)) / len(among))
            try:
                reached.append(_judged(part, candidate, replace(settings, until_ns=until_ns)))
            except (PluginError, TraceError, ConfigError) as error:
                reached.append(math.nan)
                why = str(error)
        auprc = tuple(None if math.isnan(value) else value for value in reached)
        tried.append(Tried(candidate=candidate.name, auprc=auprc, why=why))
    best = max(tried, key=lambda one: one.mean, default=None)
    if best is None or not best.mean > 0:
        was = next((one.why for one in tried if one.why), "none in any of them")
        raise TraceError(f"{bundle.path}: {_FAILURES}, was {was}")
    chosen = next(one for one in among if one.name == best.candidate)
    return chosen, tuple(tried)


def _folds(bundle: Bundle, settings: FitSettings) -> Iterator[tuple[Bundle, int]]:
    """Yield the trace up to each fold's end, and where its scored part begins."""
    start_ns = bundle.manifest.start_ns
    length_ns = settings.until_ns - start_ns
    for cut in _CUTS:
        end_ns = start_ns + round((cut + _WIDTH) * length_ns)
        yield EarlierPart(bundle, end_ns), start_ns + round(cut * length_ns)


def _judged(part: Bundle, candidate: Candidate, settings: FitSettings) -> float:
    """Return the AUPRC of a candidate on a fold, NaN where no failure is in it."""
    plugin, _ = build(
        part, candidate.info, candidate.options, tick_s=settings.tick_s, source="--option"
    )
    fitting = Fitting(part, settings, plugin)
    examples = fitting.teach(plugin, lambda _: None)
    (said,) = fitting.ask([plugin], examples.prevalence, lambda _: None)
    later = said.hindcasts.between(fitting.split.until_ns, fitting.split.end_ns)
    judged = judge(part, later, fitting.task)
    return auprc_of(judged).value if (judged.outcome == 1.0).any() else math.nan
