"""Checks before the first run: refuse an evaluation that cannot give a result."""

import logging
import math
from collections.abc import Iterable, Set
from pathlib import Path

from torchloom_core.config.evaluation import Allreduce
from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.floor.errors import ConfigError
from torchloom_core.floor.suggest import nearest
from torchloom_core.interface.needs import forecasts_read
from torchloom_core.lab.activation.activation import activate
from torchloom_core.lab.activation.discovery import installed
from torchloom_core.lab.evaluate.arm import MEMBERSHIP_POLICY, Arm
from torchloom_core.lab.evaluate.forecasts.training_trace import refuse_trained, was_fitted_on
from torchloom_core.lab.evaluate.goodput.candidates import Selection, forecasters
from torchloom_core.lab.evaluate.goodput.episode import DAY_NS, span_ns
from torchloom_core.lab.evaluate.goodput.job import ticking
from torchloom_core.lab.evaluate.goodput.run import Setting
from torchloom_core.lab.evaluate.goodput.sweep import Range
from torchloom_core.lab.evaluate.unmeasured import missing
from torchloom_core.lab.learning.model import Model
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import LINK_METRIC
from torchloom_core.live.kernel.plugins.host import ActivePlugins

_log = logging.getLogger(__name__)


def check_until(bundle: Bundle, until_ns: int | None) -> None:
    """Raise ConfigError if ``--until`` lies outside the trace."""
    start_ns, end_ns = bundle.manifest.start_ns, bundle.manifest.end_ns
    if until_ns is not None and not start_ns <= until_ns < end_ns:
        raise ConfigError(
            f"--until: need a time within the trace, {moment_text(start_ns)} to "
            f"{moment_text(end_ns)}, was {moment_text(until_ns)}"
        )


def job_on_links(bundle: Bundle, config: Config) -> Allreduce | None:
    """Return the ``[evaluate.allreduce]`` job, None if failures are simulated instead.

    ConfigError if the job needs links that the trace lacks, or the trace has only links and the
    config no such job.
    """
    job, has_links = config.evaluate.allreduce, LINK_METRIC in bundle.metrics
    if job is not None and not has_links:
        raise ConfigError(
            f"[evaluate.allreduce]: need {LINK_METRIC} in the telemetry of {bundle.path}, was none"
            f"{nearest(LINK_METRIC, bundle.metrics)}"
        )
    if job is None and has_links:
        rule = f"{bundle.path} has {LINK_METRIC}: need [evaluate.allreduce] to simulate steps on it"
        if not any(event.fatal for event in bundle.events()):
            raise ConfigError(f"{rule}, was none")
        _log.warning("%s; simulating its failures instead, in goodput", rule)
    return job


def refuse_fleet_options(*, days: float | None, swept: Range | None, has_costs: bool) -> None:
    """Raise ConfigError for options that do not apply to ``[evaluate.allreduce]``."""
    if days is not None:
        raise ConfigError(
            f"--days: need none with [evaluate.allreduce], was {days:g}: a run ends at its "
            f"required progress; set steps"
        )
    if swept:
        raise ConfigError(
            f"--sweep: need a trace of failures, was one of {LINK_METRIC}, which has no spares"
        )
    if has_costs:
        raise ConfigError(
            f"--costs-from: need a trace of failures, was one of {LINK_METRIC}, in which no "
            f"checkpoint is saved"
        )


def refuse_unread(selection: Selection, config: Config, arms: list[Arm]) -> None:
    """Raise ConfigError if no policy reads a selected predictor."""
    if not selection.predictors:
        return
    if not arms:
        raise ConfigError("--predictor: need a --policy that reads it, was none")
    read = {name for arm in arms for name in arm.predictors}
    policies = selection.policies
    if not policies:  # The config's own policies are one arm, with every predictor.
        (arm,), policies = arms, tuple(config.policies)
        own = arm.activated(ticking(config))
        active = activate(own, installed(), str(selection.config_path)).policies
        read = {need.predictor for one in active for need in forecasts_read(one.policy.needs)}
    whose = f", which reads {' and '.join(sorted(read))} by the config" if read else ""
    for one in forecasters(selection, config):
        if one.name not in read:
            raise ConfigError(
                f"--predictor {one.label}: need a --policy that reads it, was "
                f"{' and '.join(policies)}{whose}"
            )


def refuse_growth(arms: list[Arm], config: Config) -> None:
    """Raise ConfigError if an arm would admit groups to a run that cannot grow."""
    for arm in arms:
        if arm.grows and config.evaluate.recovery != "per_step":
            raise ConfigError(
                f'policy {MEMBERSHIP_POLICY}: need recovery = "per_step" in [evaluate], was '
                f'"{config.evaluate.recovery}": a run that restarts as a whole cannot grow'
            )


def built(configs: Iterable[Config], source: str) -> list[ActivePlugins]:
    """Build every arm once, so that an error is reported before the first run.

    ConfigError as activation, and if a policy would stay in dry run as its model is not useful.
    """
    path = Path(source)
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    plugins = [activate(own, installed(), source, text) for own in configs]
    for active in (active for one in plugins for active in one.policies):
        if active.dry_run_reason:
            raise ConfigError(active.dry_run_reason)
    warnings = [
        line for one in plugins for line in (*(f.detail for f in one.failed), *one.warnings)
    ]
    for line in dict.fromkeys(warnings):
        _log.warning("%s", line)
    return plugins


def unmeasured(plugins: Iterable[ActivePlugins], measured: Set[str]) -> dict[str, set[str]]:
    """Return the required metrics that are not measured, by plugin."""
    missed: dict[str, set[str]] = {}
    for active in plugins:
        readers = [(f"policy {one.name}", one.policy.needs) for one in active.policies]
        readers += [(f"predictor {name}", one.needs) for name, one in active.predictors.items()]
        for reader, needs in readers:
            missed.setdefault(reader, set()).update(missing(needs, measured))
    return {reader: metrics for reader, metrics in missed.items() if metrics}


def horizons_s(plugins: list[ActivePlugins]) -> list[tuple[str, float]]:
    """Return name and horizon of each arm's predictors; models of one predictor may differ."""
    predictors = [item for active in plugins for item in active.predictors.items()]
    return [(name, float(predictor.horizon_s)) for name, predictor in predictors]


def refuse_short(horizons_s: list[tuple[str, float]], tick_s: float) -> None:
    """Raise ConfigError if a horizon ends before a policy reads the forecast."""
    for name, horizon_s in horizons_s:
        if horizon_s <= tick_s:
            raise ConfigError(
                f"[evaluate] tick_s: need less than the horizon of {name}, {horizon_s:g} s, was "
                f"{tick_s:g}: a policy reads a forecast one tick after it was requested"
            )


def check_days(setting: Setting, bundle: Bundle, *, is_option: bool, until_ns: int | None) -> None:
    """Check the length of the runs; warn if the trace has fewer days than the config.

    ``is_option``: the days come from ``--days``; ``until_ns``: from ``--until``. ConfigError if
    ``--days`` exceeds the trace, or a run would have no tick.
    """
    evaluate = setting.config.evaluate
    _, _, length_ns = span_ns(bundle, evaluate, setting.from_ns)
    if evaluate.days * DAY_NS < evaluate.tick_s * SECOND_NS:
        named = "--days" if is_option else "[evaluate] days"
        raise ConfigError(
            f"{named}: need at least one tick of {evaluate.tick_s:g} s, was {evaluate.days:g} days"
        )
    if length_ns >= round(evaluate.days * DAY_NS):
        return
    after = " after the models' training"
    if setting.from_ns in (None, until_ns):
        after = "" if setting.from_ns is None else " after --until"
    if length_ns < evaluate.tick_s * SECOND_NS:
        raise ConfigError(
            f"{bundle.path}: need at least one tick of {evaluate.tick_s:g} s{after}, was "
            f"{length_ns / SECOND_NS:g} s"
        )
    there = f"{math.floor(length_ns / DAY_NS * 1e4) / 1e4:g} days, all that the trace has{after}"
    if is_option:
        raise ConfigError(f"--days: need at most {there}, was {evaluate.days:g}")
    _log.warning("runs last %s; [evaluate] days is %g", there, evaluate.days)


def begin_ns(bundle: Bundle, arms: list[Arm], until_ns: int | None) -> int | None:
    """Return the start of the time that no model of the arms was fitted on, plus its horizon.

    It is not before ``until_ns``. A model fitted on another trace excludes no time. LeakError if a
    model was fitted on time after ``until_ns``.
    """
    begin_ns = [] if until_ns is None else [until_ns]
    tables = [table for arm in arms for table in arm.predictors.values() if "model" in table]
    for path in dict.fromkeys(str(table["model"]) for table in tables):
        model = Model.load(Path(path))
        if was_fitted_on(model, bundle):
            info = model.info
            if until_ns is not None:
                refuse_trained(path, info.until_ns, until_ns)
            begin_ns.append(info.until_ns + round(info.horizon_s * SECOND_NS))
    return max(begin_ns, default=None)
