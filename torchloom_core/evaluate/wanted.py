"""What a person asked ``torchloom evaluate`` for."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from torchloom_core.config.schema import Config
from torchloom_core.evaluate.goodput.candidates import Asked
from torchloom_core.evaluate.goodput.sweep import Range
from torchloom_core.evaluate.parallel import Workforce

Mode = Literal["replay", "simulate"]


class TraceWanted(msgspec.Struct, frozen=True, kw_only=True):
    """A trace of the study.

    Attributes
    ----------
    until_ns : int, optional
        Time from here on is played and scored; absent: after what every model was fitted on, and
        in replay after the first 60 % if a predictor has no model.
    """

    path: Path
    until_ns: int | None = None


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation that was asked for.

    Attributes
    ----------
    traces : tuple of TraceWanted
        One or more.
    scores : tuple of (str, str)
        Name and file of forecasts that were made elsewhere; for replay.
    false_alarms_per_node_day : float
        The budget for the threshold of a predictor without a model.
    days : float, optional
        Length of a run in place of ``[evaluate] days``; the trace must have as many.
    vary_costs : bool
        Whether to play with other costs as well.
    sweep : Range, optional
        Of what to play more and more as well, for simulate mode.
    horizon_s : float, optional
        In which time given scores and what a policy does must prove right; absent: the longest
        horizon of the policies' predictors, a day without any.
    """

    traces: tuple[TraceWanted, ...]
    config: Config
    asked: Asked
    mode: Mode = "simulate"
    scores: tuple[tuple[str, str], ...] = ()
    false_alarms_per_node_day: float = 0.01
    days: float | None = None
    horizon_s: float | None = None
    seeds: int = 10
    vary_costs: bool = True
    sweep: Range | None = None
    workforce: Workforce = Workforce()


Progress = Callable[[str, float, float], None]
"""Told what is being done, how much of it is over, and how much there is."""
