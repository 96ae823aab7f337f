"""Build a predictor from its options, for a fit."""

from collections.abc import Mapping
from typing import Any

import msgspec

from torchloom_core.config.loading import convert
from torchloom_core.floor.errors import ConfigError, PluginError, TorchloomError
from torchloom_core.floor.suggest import nearest
from torchloom_core.interface.api import Predictor
from torchloom_core.interface.contract import needs_problem, pace_problem
from torchloom_core.interface.foreign import one_line
from torchloom_core.lab.activation.discovery import PluginInfo
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.feed.watched import watch

METRICS, ATTRIBUTES, GROUPS, FAULTS = "metrics", "attributes", "groups", "half_lives_s"
"""Options that select a predictor's inputs."""


def build(
    bundle: Bundle, info: PluginInfo, options: Mapping[str, Any], *, tick_s: float, source: str
) -> tuple[Predictor, dict[str, Any]]:
    """Return an unfitted predictor, and all of its options.

    Parameters
    ----------
    options : mapping
        As under ``[predictors.<name>]``. ``metrics``, ``attributes`` and ``groups`` default to all
        that the trace has.
    source : str
        Source of the options, for errors.

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
    fields = info.cls.Options.__struct_encode_fields__
    wanted = {name: list(of) for name, of in there.items() if of and name in fields}
    wanted.update(options)
    converted = convert(wanted, info.cls.Options, source, f"predictors.{info.name}")
    try:
        plugin: Predictor = info.cls(converted)
        problem = needs_problem("predictor", plugin.needs, tick_s) or pace_problem(plugin)
    except (TorchloomError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PluginError(f"predictor {info.name}: cannot be built: {one_line(error)}") from error
    if problem:
        raise PluginError(f"predictor {info.name}: {problem}")
    return plugin, msgspec.json.decode(msgspec.json.encode(converted))


def refuse_unmeasured(bundle: Bundle, options: Mapping[str, Any]) -> None:
    """Refuse a metric on the command line that the trace does not have.

    A metric in a config only causes a warning, as the config may be for another trace.

    Raises
    ------
    ConfigError
        If there is one.
    """
    named = options.get(METRICS)
    for metric in named if isinstance(named, list) else ():
        if metric not in bundle.metrics:
            near = nearest(metric, bundle.metrics) if isinstance(metric, str) else ""
            raise ConfigError(
                f"--option {METRICS}: need a metric of {bundle.path}, was {metric!r}{near}"
            )
