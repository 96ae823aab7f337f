"""What ``--predictor auto`` chooses among: installed predictors, with options worth a try."""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchloom_core.activation.discovery import PluginInfo
from torchloom_core.errors import ConfigError
from torchloom_core.fitting.baselines import usual_spans_s
from torchloom_core.fitting.build import METRICS
from torchloom_core.plugin.foreign import shown
from torchloom_core.suggest import nearest

_log = logging.getLogger(__name__)

HORIZON = "horizon_s"
_FAULTS, _SPANS_S = "half_lives_s", "spans_s"


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
    horizon_s = told.get(HORIZON)
    if not isinstance(horizon_s, int | float) or not 0.0 < horizon_s < math.inf:
        raise ConfigError(
            f"--option: need {HORIZON}=SECONDS > 0, the same for all that are tried, was "
            f"{'none' if horizon_s is None else repr(horizon_s)}"
        )
    learners = [
        info
        for info in plugins
        if info.kind == "predictor" and not info.problem and hasattr(info.cls, "fit")
        if HORIZON in _options_of(info)
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


def _variants(usual: Candidate) -> Iterator[Candidate]:
    """Yield a candidate as it comes, and with the other options that its predictor names."""
    yield usual
    for options in _variants_of(usual.info):
        if not {*options} & {*usual.options}:
            named = ", ".join(f"{name} {value}" for name, value in options.items())
            what = f"{usual.what}, {named}" if usual.what else named
            yield Candidate(usual.info, {**usual.options, **options}, what)


def _variants_of(info: PluginInfo) -> Sequence[Mapping[str, Any]]:
    """Return the options that a predictor says are worth a try; none if it says nonsense."""
    named = getattr(info.cls, "variants", ())
    tables = named if isinstance(named, list | tuple) else [named]
    for table in tables:
        if not isinstance(table, Mapping) or not all(isinstance(name, str) for name in table):
            _log.warning(
                "predictor %s: need variants as a tuple of dicts of options, was %s; they are not "
                "tried", info.name, shown(named),
            )  # fmt: skip
            return ()
    return tables


def _options_of(info: PluginInfo) -> tuple[str, ...]:
    fields: tuple[str, ...] = info.cls.Options.__struct_encode_fields__ if info.cls else ()
    return fields
