"""Fit a predictor on the earlier part of a trace, and measure it on the rest.

``torchloom fit`` calls it.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from torchloom_core.activation.discovery import PluginInfo
from torchloom_core.errors import ConfigError, PluginError, TraceError
from torchloom_core.evaluate.contradictions import refuse_contradicting, say_beyond
from torchloom_core.evaluate.forecasts.leaks import refuse_foreknown
from torchloom_core.evaluate.forecasts.leaky_attributes import GROUP
from torchloom_core.evaluate.forecasts.leaky_service import IN_SERVICE
from torchloom_core.evaluate.unmeasured import missing, say_unseen
from torchloom_core.fitting.baselines import Baselines, usual_spans_s
from torchloom_core.fitting.build import ATTRIBUTES, FAULTS, GROUPS, METRICS, build
from torchloom_core.fitting.examples import Examples
from torchloom_core.fitting.memory import available_bytes, refuse_without_room
from torchloom_core.fitting.pace import say_asked_often, say_short_spans, say_too_often
from torchloom_core.fitting.passes import Passes, Stages
from torchloom_core.fitting.stages import FitSettings, Fitting, Said, as_plugin_error
from torchloom_core.learning.alarm_rate import alarm_unit
from torchloom_core.learning.card import Card
from torchloom_core.learning.forecast_score import FEW, ForecastScore
from torchloom_core.learning.model import Model, ModelInfo, is_plain
from torchloom_core.learning.skill import RANDOM, leaky
from torchloom_core.plugin.api import Learner, Predictor
from torchloom_core.plugin.foreign import shown
from torchloom_core.suggest import nearest
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.checksums import refuse_changed
from torchloom_core.trace.bundle.recorded_values import recorded_values
from torchloom_core.trace.bundle.recording import prints
from torchloom_core.trace.feed.watched import watch

_NOT_CARRIED_OVER = (
    "What it says since it learned again could not be held against what it said when it was "
    "calibrated: it judged nobody in the last horizon before --until. Its threshold may raise far "
    "more alarms than it was set for, or none; a smaller --every-s may help."
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
    """Fit a predictor, calibrate it, and measure it on the time after ``until_ns``.

    Parameters
    ----------
    options : mapping
        As under ``[predictors.<name>]``.
    baselines : sequence of PluginInfo
        Those of ``BASELINES`` and ``DETECTORS`` that are installed, to compare with.
    source : str
        Where the options come from, for errors.

    Raises
    ------
    ConfigError
        If an option is wrong.
    PluginError
        If the predictor breaks its contract, cannot learn from the trace or never judges.
    TraceError
        If a file of the trace was changed or the trace was replaced meanwhile, it is too short,
        ``until_ns`` outside of it, or a kind is of no event.
    LeakError
        If the trace knows something before it happens.
    """
    check(bundle, settings)
    plugin, told = build(bundle, info, options, tick_s=settings.tick_s, source=source)
    refuse_without_room(bundle, settings, plugin, available_bytes())
    say_unread(bundle, info.name, [plugin])
    say_asked_often(bundle, settings, info.name, [plugin])
    spans_s = told.get("spans_s", ()) if told.get(METRICS) else ()
    say_short_spans(bundle, info.name, spans_s, usual_spans_s(plugin.horizon_s, settings.tick_s))
    return fit_checked(
        bundle, info, options, settings, baselines=baselines, stages=stages, source=source
    )


def fit_checked(
    bundle: Bundle,
    info: PluginInfo,
    options: Mapping[str, Any],
    settings: FitSettings,
    *,
    baselines: Sequence[PluginInfo] = (),
    stages: Stages = lambda _: lambda _: None,
    source: str = "options",
) -> Model:
    """Do what :func:`fit` does, of a trace that :func:`check` has found nothing against."""
    plugin, told = build(bundle, info, options, tick_s=settings.tick_s, source=source)
    fitting = Fitting(bundle, settings, plugin)
    beside = Baselines(fitting, plugin, baselines)
    passes = Passes(
        fitting,
        [plugin, *beside.plugins.values()],
        stages,
        asked_anyway=beside.asked_anyway,
        for_the_first=True,
    )
    earlier = passes.learn_twice()
    columns, parts = _columns(plugin), _parts(plugin)
    by_place = passes.calibrated(earlier, passes.ask())
    said = by_place[0]
    others = {RANDOM: fitting.guess(said)} | beside.answered(passes, by_place)
    examples = passes.examples
    remarks = beside.remarks
    if isinstance(plugin, Learner) and said.calibration.stretch is msgspec.UNSET:
        remarks.append(_NOT_CARRIED_OVER)
    stages(f"score {info.name}")(0.0)
    flags = examples.flags() + fitting.leaky(plugin.needs)
    scored = fitting.score(info.name, said, others, flags)
    if leaky(scored):
        remarks.append(_without(fitting, info, told, leaky(scored), stages))
    card = replace(
        _card(fitting, info, said, scored),
        baselines=tuple(fitting.score(name, other, {}) for name, other in others.items()),
        remarks=(*_remarks(fitting, examples, said, scored), *remarks),
        columns=columns,
    )
    model = Model(_info(fitting, info, told, said, scored), parts, card)
    bundle.refuse_replaced()
    return model


def check(bundle: Bundle, settings: FitSettings) -> None:
    """Refuse a trace that was changed, or knows what is to come, and names that are not in it.

    Say which events lie beyond its end, and that it is looked at far too often.

    Raises
    ------
    LeakError, TraceError
        As :func:`fit`.
    """
    bundle.digest()  # of what is looked at, whatever is there at the end
    refuse_changed(bundle.path, bundle.manifest.files)
    refuse_foreknown(bundle)
    refuse_contradicting(bundle)
    say_beyond(bundle)
    say_too_often(bundle, settings.tick_s)
    kinds = {event.kind for event in bundle.events()}
    labels = {name for of in watch(bundle).labels.of for name in of}
    for what, names, known in (
        ("kind that its events have", settings.kinds, kinds),
        (
            "metric, an attribute or a kind of event that it has",
            settings.known_before,
            {*bundle.metrics, *labels, *kinds, GROUP, IN_SERVICE},
        ),
    ):
        for name in names:
            if name not in known:
                raise TraceError(
                    f"{bundle.path}: need a {what}, was {name!r}{nearest(name, known)}"
                )


def say_unread(bundle: Bundle, name: str, plugins: Iterable[Predictor]) -> None:
    """Say which metrics a predictor, or all of which it may be one, reads and the trace has not."""
    known = {*bundle.metrics}
    unseen = {metric for plugin in plugins for metric in missing(plugin.needs, known)}
    say_unseen(f"predictor {name}", unseen, known, "the trace has not")


def _without(
    fitting: Fitting,
    info: PluginInfo,
    told: Mapping[str, Any],
    columns: Sequence[str],
    stages: Stages,
) -> str:
    """Return what the predictor is worth without the columns that know the future."""
    named = ", ".join(columns)
    read = {option: told[option] for option in (METRICS, ATTRIBUTES, GROUPS) if option in told}
    kept = {option: [name for name in of if name not in columns] for option, of in read.items()}
    of_faults = {GROUP, *(event.kind for event in fitting.bundle.events())}
    if others := set(columns).difference(*read.values()):
        if others - of_faults or FAULTS not in told:
            return f"It cannot be fitted without {named}: {info.name} has no option for that."
        kept[FAULTS] = []
        named += " and any other fault"
    asked = {*of_faults, IN_SERVICE}.union(*read.values())
    settings = dataclasses.replace(fitting.settings, known_before=tuple(sorted(asked)))
    try:
        model = fit_checked(
            fitting.bundle,
            info,
            {**told, **kept},
            settings,
            stages=lambda stage: stages(f"{stage} without {named}"),
        )
    except (ConfigError, PluginError) as error:
        return f"It cannot be fitted without {named}: {error}."
    auprc = model.card.score.auprc
    between = "" if auprc.low is None else f" [{auprc.low:.3g}, {auprc.high:.3g}]"
    return f"Without {named}: AUPRC {auprc.value:.3g}{between}. {model.card.verdict.sentence}"


def _card(fitting: Fitting, info: PluginInfo, said: Said, scored: ForecastScore) -> Card:
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
        calibration=said.calibration.text(scored.told),
        watched=fitting.watched,
        score=scored,
    )


def _info(
    fitting: Fitting,
    info: PluginInfo,
    options: dict[str, Any],
    said: Said,
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
        calibration=said.calibration,
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


def _columns(plugin: Predictor) -> tuple[str, ...]:
    """Return by what a predictor judges, if it says so."""
    with as_plugin_error(plugin, "its columns cannot be had"):
        said = getattr(plugin, "columns", ())
        return said if isinstance(said, tuple) and all(isinstance(one, str) for one in said) else ()


def _parts(plugin: Predictor) -> Mapping[str, bytes]:
    """Return what a learner gives to be written, or raise PluginError."""
    if not isinstance(plugin, Learner):
        return {}
    with as_plugin_error(plugin, "its parts cannot be had"):
        given: Any = plugin.parts()
        if not isinstance(given, Mapping):
            raise PluginError(
                f"predictor {plugin.name}: need parts as a dict, was {type(given).__name__}"
            )
        for name, part in given.items():
            if not (isinstance(name, str) and is_plain(name) and isinstance(part, bytes)):
                raise PluginError(
                    f"predictor {plugin.name}: need parts as plain file names to bytes, was "
                    f"{shown(name)} to {type(part).__name__}"
                )
        return dict(given)


def _remarks(
    fitting: Fitting, examples: Examples, said: Said, scored: ForecastScore
) -> Iterator[str]:
    """Yield the limits of what the card says, one sentence each."""
    manifest = fitting.bundle.manifest
    yield (
        f"Fitted on {examples.moments} judged moments of a {fitting.watched}, "
        f"{examples.positives} of which were {scored.told.positive}."
    )
    if fitting.settings.known_before:
        named = ", ".join(fitting.settings.known_before)
        yield f"Said to be known beforehand, and not asked what it tells of the future: {named}."
    yield from said.calibration.remarks
    yield "What it is worth on another fleet, or after the fleet has changed, nobody measured."
    if manifest.synthetic:
        yield "The trace is synthetic: the score says how well it learns what was made up."
    absent = sorted({*examples.metrics} - {*fitting.bundle.metrics})
    if absent:
        yield f"It reads what the trace does not have: {', '.join(absent)}."
    loaded = sorted(set(manifest.load_dependent).intersection(examples.metrics))
    if loaded:
        named = ", ".join(loaded)
        yield f"Depends on what ran on a component, and means little once it moved: {named}."
    allowed = fitting.settings.false_alarms_per_node_day
    days = said.earlier.component_days
    if allowed * days < 1:
        yield (
            f"Its threshold was set to raise no false alarm: "
            f"{alarm_unit(fitting.watched, [allowed]).said(allowed)} are less than one in the "
            f"{days:.3g} {fitting.watched}-days it was calibrated on. "
            "--false-alarms-per-node-day says how many it may raise."
        )
    if scored.incidents < FEW:
        yield (
            "Exact intervals of counts and no others: it takes "
            f"{scored.told.count(FEW)} for more, was {scored.incidents}."
        )
