"""The request of one ``torchloom evaluate`` command."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from torchloom_core.config.schema import Config
from torchloom_core.lab.evaluate.goodput.candidates import Selection
from torchloom_core.lab.evaluate.goodput.sweep import Range
from torchloom_core.lab.evaluate.measured_costs import MeasuredCosts
from torchloom_core.lab.evaluate.parallel import Workforce

Mode = Literal["replay", "simulate"]


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A trace of the study, and the start of the evaluated time.

    Absent: the end of every model's training, and in replay 60 % of the trace if a predictor has no
    model.
    """

    path: Path
    until_ns: int | None = None


class EvaluationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to evaluate, and how.

    ``scores`` are name and file of external forecasts, for replay. The budget of false alarms sets
    the threshold of a predictor without a model. ``days`` replaces ``[evaluate] days``; the trace
    must be that long. ``vary_costs`` repeats the runs with other costs; ``sweep`` is a number of
    spares or standbys to vary. A failure must follow a given score or an action within
    ``horizon_s``; absent: the longest horizon of the policies' predictors, a day without any.
    ``measured`` replaces the costs of the config, and of the traces' jobs.
    """

    traces: tuple[TraceRequest, ...]
    config: Config
    selection: Selection
    mode: Mode = "simulate"
    scores: tuple[tuple[str, str], ...] = ()
    false_alarms_per_node_day: float = 0.01
    days: float | None = None
    horizon_s: float | None = None
    seeds: int = 10
    vary_costs: bool = True
    sweep: Range | None = None
    workforce: Workforce = Workforce()
    measured: MeasuredCosts | None = None


Progress = Callable[[str, float, float], None]
"""Called with the name of the stage, the work done and the total work."""
