"""Build a predictor from its options, and read what it lists and learned."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from torchloom_core.config.loading import convert
from torchloom_core.floor.errors import ConfigError, PluginError, TorchloomError
from torchloom_core.floor.suggest import nearest
from torchloom_core.interface.api import Learner, Predictor
from torchloom_core.interface.contract import needs_problem, pace_problem
from torchloom_core.interface.foreign import one_line, shown
from torchloom_core.lab.activation.discovery import PluginInfo
from torchloom_core.lab.learning.model import is_plain
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.feed.watched import watch

METRICS, ATTRIBUTES, GROUPS, FAULTS = "metrics", "attributes", "groups", "half_lives_s"
"""Options that select a predictor's inputs."""
_SPANS = (0.5, 2.0)


def build(
    bundle: Bundle, info: PluginInfo, options: Mapping[str, Any], *, tick_s: float, source: str
) -> tuple[Predictor, dict[str, Any]]:
    """Return an unfitted predictor, and all of its options.

    ``metrics``, ``attributes`` and ``groups`` default to all that the trace has; ``source`` is
    where the options are from, for errors. ConfigError if an option is wrong; PluginError if the
    predictor is broken or breaks its contract.
    """
    if info.problem or info.cls is None:
        raise PluginError(f"predictor {info.name} ({info.entry_point}): {info.problem}")
    labels = watch(bundle).labels
    there = {METRICS: bundle.metrics, ATTRIBUTES: labels.numbers, GROUPS: labels.words}
    fields = info.cls.Options.__struct_encode_fields__
    wanted = {name: list(of) for name, of in there.items() if of and name in fields}
    wanted.update(options)
    converted = convert(wanted, info.cls.Options, source, f"predictors.{info.name}")
    with as_plugin_error(info.name, "cannot be built"):
        plugin: Predictor = info.cls(converted)
        problem = needs_problem("predictor", plugin.needs, tick_s) or pace_problem(plugin)
    if problem:
        raise PluginError(f"predictor {info.name}: {problem}")
    return plugin, msgspec.json.decode(msgspec.json.encode(converted))


@contextmanager
def as_plugin_error(name: str, what: str = "cannot fit") -> Iterator[None]:
    """Turn whatever a predictor raises, also SystemExit, into a PluginError with its name."""
    try:
        yield
    except (TorchloomError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PluginError(f"predictor {name}: {what}: {one_line(error)}") from error


def usual_spans_s(horizon_s: float, tick_s: float) -> list[float]:
    """Return half a horizon and two as spans of features, but no less than two samples."""
    return sorted({max(2.0 * tick_s, share * horizon_s) for share in _SPANS})


def refuse_unmeasured(bundle: Bundle, options: Mapping[str, Any]) -> None:
    """Raise ConfigError for a metric on the command line that the trace does not have.

    A metric in a config only causes a warning, as the config may be for another trace.
    """
    named = options.get(METRICS)
    for metric in named if isinstance(named, list) else ():
        if metric not in bundle.metrics:
            near = nearest(metric, bundle.metrics) if isinstance(metric, str) else ""
            raise ConfigError(
                f"--option {METRICS}: need a metric of {bundle.path}, was {metric!r}{near}"
            )


def columns_of(plugin: Predictor) -> tuple[str, ...]:
    """Return the names of a predictor's inputs, if it lists them."""
    with as_plugin_error(plugin.name, "cannot read its columns"):
        names = getattr(plugin, "columns", ())
        is_valid = isinstance(names, tuple) and all(isinstance(one, str) for one in names)
        return names if is_valid else ()


def parts_of(plugin: Predictor) -> Mapping[str, bytes]:
    """Return the parts of a learner's model, or raise PluginError."""
    if not isinstance(plugin, Learner):
        return {}
    with as_plugin_error(plugin.name, "cannot read its parts"):
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
