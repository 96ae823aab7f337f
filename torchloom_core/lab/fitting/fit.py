"""Fit a predictor on the earlier part of a trace, and score it on the rest.

``torchloom fit`` calls it.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from torchloom_core.floor.errors import ConfigError, PluginError
from torchloom_core.interface.api import Learner
from torchloom_core.lab.activation.discovery import PluginInfo
from torchloom_core.lab.evaluate.forecasts.component_inputs import GROUP
from torchloom_core.lab.evaluate.forecasts.leaks import IN_SERVICE, find_leaky_inputs
from torchloom_core.lab.fitting.baselines import Baselines
from torchloom_core.lab.fitting.build import (
    ATTRIBUTES,
    FAULTS,
    GROUPS,
    METRICS,
    build,
    columns_of,
    parts_of,
)
from torchloom_core.lab.fitting.examples import Examples
from torchloom_core.lab.fitting.passes import (
    CalibratedForecasts,
    Passes,
    Stages,
    calibrated,
    random_forecasts,
    scored,
)
from torchloom_core.lab.fitting.time_split import FitSettings, Fitting
from torchloom_core.lab.learning.card import Card
from torchloom_core.lab.learning.forecast_score import FEW, ForecastScore, alarm_unit
from torchloom_core.lab.learning.model import Model, ModelInfo
from torchloom_core.lab.learning.skill import RANDOM, leaky
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.recorded_values import prints, recorded_values

_NOT_CARRIED_OVER = (
    "The forecasts of the refit could not be mapped to those that were calibrated: there are none "
    "in the last horizon before --until. The threshold may raise far more alarms than it was set "
    "for, or none; a smaller --every-s may help."
)


def fit(
    bundle: Bundle,
    info: PluginInfo,
    options: Mapping[str, Any],
    settings: FitSettings,
    *,
    baselines: Sequence[PluginInfo] = (),
    stages: Stages = lambda _: lambda _: None,
    source: str = "options",
) -> Model:
    """Fit a predictor, calibrate it, and score it on the time after ``until_ns``.

    The trace and the predictor passed the :mod:`~torchloom_core.lab.fitting.checks`.

    Parameters
    ----------
    options : mapping
        As under ``[predictors.<name>]``; ``source`` is where they are from, for errors.
    baselines : sequence of PluginInfo
        The installed ones of ``BASELINES`` and ``DETECTORS``.

    Raises
    ------
    ConfigError
        If an option is wrong.
    PluginError
        If the predictor breaks its contract, cannot learn from the trace or makes no forecast.
    TraceError
        If the trace is too short.
    """
    plugin, all_options = build(bundle, info, options, tick_s=settings.tick_s, source=source)
    fitting = Fitting(bundle, settings, plugin)
    compared = Baselines(fitting, plugin, baselines)
    passes = Passes(
        fitting,
        [plugin, *compared.plugins.values()],
        stages,
        usable_unfitted=compared.usable_unfitted,
        raise_first=True,
    )
    earlier = passes.learn_twice()
    columns, parts = columns_of(plugin), parts_of(plugin)
    by_index: dict[int, CalibratedForecasts] = {}
    for number, later in passes.forecast().items():
        try:
            name = passes.plugins[number].name
            by_index[number] = calibrated(fitting, name, earlier[number], later, passes.prevalence)
        except PluginError as error:
            passes.refuse(number, error)
    forecasts = by_index[0]
    others = {RANDOM: random_forecasts(forecasts, settings.seed)}
    others |= compared.by_name(passes, by_index)
    examples = passes.examples
    limits = compared.limits
    if isinstance(plugin, Learner) and forecasts.calibration.stretch is msgspec.UNSET:
        limits.append(_NOT_CARRIED_OVER)
    stages(f"score {info.name}")(0.0)
    leaks = find_leaky_inputs(
        bundle,
        plugin.needs,
        fitting.task,
        tick_s=settings.tick_s,
        every_s=fitting.every_s,
        known_before=settings.known_before,
    )
    own = scored(fitting, info.name, forecasts, others, examples.flags() + leaks)
    if leaky(own):
        limits.append(_without(fitting, info, all_options, leaky(own), stages))
    card = replace(
        _card(fitting, info, forecasts, own),
        baselines=tuple(scored(fitting, name, other, {}) for name, other in others.items()),
        limits=(*_limits(fitting, examples, forecasts, own), *limits),
        columns=columns,
    )
    return Model(_info(fitting, info, all_options, forecasts, own), parts, card)


def _without(
    fitting: Fitting,
    info: PluginInfo,
    options: Mapping[str, Any],
    columns: Sequence[str],
    stages: Stages,
) -> str:
    """Return a sentence on the score of the predictor without its leaky columns."""
    named = ", ".join(columns)
    read = {name: options[name] for name in (METRICS, ATTRIBUTES, GROUPS) if name in options}
    changed = {option: [name for name in of if name not in columns] for option, of in read.items()}
    of_faults = {GROUP, *(event.kind for event in fitting.bundle.events())}
    if others := set(columns).difference(*read.values()):
        if others - of_faults or FAULTS not in options:
            return f"It cannot be fitted without {named}: {info.name} has no option for that."
        changed[FAULTS] = []
        named += " and any other fault"
    allowed = {*of_faults, IN_SERVICE}.union(*read.values())
    settings = dataclasses.replace(fitting.settings, known_before=tuple(sorted(allowed)))
    try:
        model = fit(
            fitting.bundle,
            info,
            {**options, **changed},
            settings,
            stages=lambda stage: stages(f"{stage} without {named}"),
        )
    except (ConfigError, PluginError) as error:
        return f"It cannot be fitted without {named}: {error}."
    auprc = model.card.score.auprc
    between = "" if auprc.low is None else f" [{auprc.low:.3g}, {auprc.high:.3g}]"
    return f"Without {named}: AUPRC {auprc.value:.3g}{between}. {model.card.verdict.sentence}"


def _card(
    fitting: Fitting, info: PluginInfo, forecasts: CalibratedForecasts, scored: ForecastScore
) -> Card:
    manifest, split = fitting.bundle.manifest, fitting.split
    return Card(
        predictor=info.name,
        package=f"{info.package} {info.version}",
        trace=manifest.name,
        trace_digest=fitting.bundle.digest(),
        source=manifest.source,
        licence=manifest.licence,
        synthetic=manifest.synthetic,
        fitted_from_ns=split.start_ns,
        fitted_until_ns=split.fitted_until_ns,
        calibrated_from_ns=split.calibrated_from_ns,
        calibrated_until_ns=split.calibrated_until_ns,
        until_ns=split.until_ns,
        calibration=forecasts.calibration.text(scored.wording),
        watched=fitting.watched,
        score=scored,
    )


def _info(
    fitting: Fitting,
    info: PluginInfo,
    options: dict[str, Any],
    forecasts: CalibratedForecasts,
    scored: ForecastScore,
) -> ModelInfo:
    settings, task = fitting.settings, fitting.task
    return ModelInfo(
        predictor=info.name,
        package=info.package,
        version=info.version,
        options=options,
        task=task.kind,
        lead_s=task.lead_s,
        kinds=task.kinds,
        tick_s=settings.tick_s,
        repair_s=task.repair_s,
        every_s=fitting.every_s,
        horizon_s=task.horizon_s,
        calibration=forecasts.calibration,
        threshold=scored.threshold,
        threshold_from=scored.threshold_from,
        false_alarms_per_node_day=settings.false_alarms_per_node_day,
        until_ns=settings.until_ns,
        event_prints=prints(
            event
            for event in fitting.bundle.events()
            if task.counts(event) and event.t_avail < settings.until_ns
        ),
        values=recorded_values(fitting.bundle, settings.until_ns),
        seed=settings.seed,
        known_before=settings.known_before or msgspec.UNSET,
    )


def _limits(
    fitting: Fitting, examples: Examples, forecasts: CalibratedForecasts, scored: ForecastScore
) -> Iterator[str]:
    """Yield the limits of the model, one sentence each."""
    manifest = fitting.bundle.manifest
    yield (
        f"Fitted on {examples.moments} labelled moments of a {fitting.watched}, "
        f"{examples.positives} of them {scored.wording.positive}."
    )
    if fitting.settings.known_before:
        named = ", ".join(fitting.settings.known_before)
        yield f"Declared as known beforehand, so not checked for leaks: {named}."
    yield from forecasts.calibration.limits
    yield "Not measured on another fleet, or after a change of this fleet."
    if manifest.synthetic:
        yield "The trace is synthetic: the score does not apply to a real fleet."
    absent = sorted({*examples.metrics} - {*fitting.bundle.metrics})
    if absent:
        yield f"It reads metrics that the trace does not have: {', '.join(absent)}."
    loaded = sorted(set(manifest.load_dependent).intersection(examples.metrics))
    if loaded:
        yield f"These metrics depend on the load, and change when a job moves: {', '.join(loaded)}."
    allowed = fitting.settings.false_alarms_per_node_day
    days = forecasts.earlier.component_days
    if allowed * days < 1:
        yield (
            f"The threshold allows no false alarm: "
            f"{alarm_unit(fitting.watched, [allowed]).rate_text(allowed)} are less than one in the "
            f"{days:.3g} {fitting.watched}-days of the calibration. "
            "--false-alarms-per-node-day sets how many are allowed."
        )
    if scored.incidents < FEW:
        yield (
            f"Only counts have (exact) intervals: others need {scored.wording.count(FEW)}, "
            f"was {scored.incidents}."
        )
