"""Build a predictor from its options, as fitting needs it."""

from collections.abc import Mapping
from typing import Any

import msgspec

from torchloom_core.activation.discovery import PluginInfo
from torchloom_core.config.loading import convert
from torchloom_core.errors import ConfigError, PluginError, TorchloomError
from torchloom_core.plugin.api import Predictor
from torchloom_core.plugin.contract import needs_problem, pace_problem
from torchloom_core.plugin.foreign import one_line
from torchloom_core.suggest import nearest
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.feed.watched import watch

METRICS, ATTRIBUTES, GROUPS, FAULTS = "metrics", "attributes", "groups", "half_lives_s"
"""The options of a predictor that say what it reads."""


def build(
    bundle: Bundle, info: PluginInfo, options: Mapping[str, Any], *, tick_s: float, source: str
) -> tuple[Predictor, dict[str, Any]]:
    """Return a predictor that has learned nothing yet, and all of its options.

    Parameters
    ----------
    options : mapping
        As under ``[predictors.<name>]``. Where ``metrics``, ``attributes`` or ``groups`` is an
        option and not among them, it becomes all that the trace has.
    source : str
        Where the options come from, for errors.

    Raises
    ------
    ConfigError
        If an option is wrong.
    PluginError
        If the predictor is broken or breaks its contract.
    """
    if info.problem or info.cls is None:
        raise PluginError(f"predictor {info.name} ({info.entry_point}): {info.problem}")
    labels = watch(bundle).labels
    there = {METRICS: bundle.metrics, ATTRIBUTES: labels.numbers, GROUPS: labels.words}
    known = info.cls.Options.__struct_encode_fields__
    wanted = {name: list(of) for name, of in there.items() if of and name in known}
    wanted.update(options)
    told = convert(wanted, info.cls.Options, source, f"predictors.{info.name}")
    try:
        plugin: Predictor = info.cls(told)
        problem = needs_problem("predictor", plugin.needs, tick_s) or pace_problem(plugin)
    except (TorchloomError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PluginError(f"predictor {info.name}: cannot be built: {one_line(error)}") from error
    if problem:
        raise PluginError(f"predictor {info.name}: {problem}")
    return plugin, msgspec.json.decode(msgspec.json.encode(told))


def refuse_unmeasured(bundle: Bundle, told: Mapping[str, Any]) -> None:
    """Refuse a metric that is not in the trace where a person has just named it.

    One that a config names may be of another trace: of that it is said that nobody sees it.

    Raises
    ------
    ConfigError
        If there is one.
    """
    named = told.get(METRICS)
    for metric in named if isinstance(named, list) else ():
        if metric not in bundle.metrics:
            near = nearest(metric, bundle.metrics) if isinstance(metric, str) else ""
            raise ConfigError(
                f"--option {METRICS}: need metrics of {bundle.path}, was {metric!r}{near}"
            )
