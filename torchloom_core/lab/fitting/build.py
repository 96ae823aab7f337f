"""Build a predictor from its options, and list the candidates of ``--predictor auto``."""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from torchloom_core.config.loading import convert
from torchloom_core.floor.errors import ConfigError, PluginError, TorchloomError
from torchloom_core.floor.suggest import nearest
from torchloom_core.interface.api import Predictor
from torchloom_core.interface.contract import needs_problem, pace_problem
from torchloom_core.interface.foreign import one_line, shown
from torchloom_core.lab.activation.discovery import PluginInfo
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.feed.watched import watch

METRICS, ATTRIBUTES, GROUPS, FAULTS = "metrics", "attributes", "groups", "half_lives_s"
"""Options that select a predictor's inputs."""
_SPANS = (0.5, 2.0)


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
    """Return the default spans of metric features, seconds.

    Half a horizon and two horizons, but no less than two samples.
    """
    return sorted({max(2.0 * tick_s, share * horizon_s) for share in _SPANS})


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


_log = logging.getLogger(__name__)

HORIZON = "horizon_s"
_FAULTS, _SPANS_S = "half_lives_s", "spans_s"


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

    Parameters
    ----------
    options : mapping
        Options for all candidates that have them, horizon_s among them.
    tick_s : float
        Seconds between samples.

    Raises
    ------
    ConfigError
        If no predictor has an option, or horizon_s is missing.
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
        what = "telemetry and faults" if _FAULTS in fields else ""
        found += _variants(Candidate(info, with_spans, what))
        if _FAULTS in fields:
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
