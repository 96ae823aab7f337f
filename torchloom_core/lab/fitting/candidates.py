"""List the candidates of ``--predictor auto``: installed predictors, with their variants."""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchloom_core.floor.errors import ConfigError
from torchloom_core.floor.suggest import nearest
from torchloom_core.interface.foreign import shown
from torchloom_core.lab.activation.discovery import PluginInfo
from torchloom_core.lab.fitting.baselines import usual_spans_s
from torchloom_core.lab.fitting.build import METRICS

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
