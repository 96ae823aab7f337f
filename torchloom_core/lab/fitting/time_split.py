"""Split a trace's time into training, calibration and scoring."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.evaluate.forecasts.labels import Task
from torchloom_core.lab.fitting.earlier_part import EarlierPart
from torchloom_core.lab.trace.bundle.bundle import Bundle

_CALIBRATION_SHARE = 0.25
_DAY_NS = 86_400 * SECOND_NS


@dataclass(frozen=True, kw_only=True)
class Split:
    """Parts of the time, a horizon apart: no outcome of one part is decided in the next.

    Attributes
    ----------
    start_ns, first_until_ns : int
        Training time of the first fit, which is calibrated.
    calibrated_from_ns, calibrated_until_ns : int
        Time to set probabilities and threshold: the last quarter of the time before ``until_ns``,
        less two horizons.
    fitted_until_ns : int
        Last moment of the final fit, just before ``calibrated_until_ns``: at least one moment lies
        between it and ``until_ns``, unless a horizon is shorter than the forecast interval.
    until_ns, end_ns : int
        Time to score.
    """

    start_ns: int
    first_until_ns: int
    calibrated_from_ns: int
    calibrated_until_ns: int
    fitted_until_ns: int
    until_ns: int
    end_ns: int


def split(bundle: Bundle, task: Task, *, until_ns: int, every_s: float) -> Split:
    """Split a trace at ``until_ns``.

    Raises
    ------
    TraceError
        If a part is shorter than a moment and a horizon.
    """
    start_ns, end_ns = bundle.manifest.start_ns, bundle.manifest.end_ns
    if not start_ns < until_ns < end_ns:
        raise TraceError(
            f"{bundle.path}: need --until within the {days(end_ns - start_ns)} days of the trace, "
            f"{moment_text(start_ns)} to {moment_text(end_ns)}, was day {days(until_ns - start_ns)}"
        )
    every_ns = round(every_s * SECOND_NS)
    _refuse_short(bundle, task.horizon_ns, every_ns, until_ns)
    usable_ns = until_ns - start_ns - 2 * task.horizon_ns
    last_ns = until_ns - task.horizon_ns
    cut_ns = last_ns - round(_CALIBRATION_SHARE * usable_ns)
    cut_ns -= (cut_ns - start_ns) % every_ns
    return Split(
        start_ns=start_ns,
        first_until_ns=cut_ns - task.horizon_ns,
        calibrated_from_ns=cut_ns,
        calibrated_until_ns=last_ns,
        fitted_until_ns=last_ns - 1 - (last_ns - 1 - start_ns) % every_ns,
        until_ns=until_ns,
        end_ns=end_ns,
    )


def _refuse_short(bundle: Bundle, horizon_ns: int, every_ns: int, until_ns: int) -> None:
    """Raise TraceError, with remedies, if the time on one side of ``until_ns`` is too short."""
    start_ns, end_ns = bundle.manifest.start_ns, bundle.manifest.end_ns
    before_ns, after_ns = 2 * horizon_ns + 4 * every_ns, horizon_ns + every_ns
    was_before_ns, was_after_ns = until_ns - start_ns, end_ns - until_ns
    if was_before_ns < before_ns:
        what, need_ns, was_ns = "two horizons and four moments before", before_ns, was_before_ns
    elif was_after_ns < after_ns:
        what, need_ns, was_ns = "a horizon and a moment after", after_ns, was_after_ns
    else:
        return
    helps = []
    if every_ns > horizon_ns:
        helps.append(f"--every-s and --tick-s of {horizon_ns / SECOND_NS:g} or less")
    longest_ns = min((was_before_ns - 4 * every_ns) // 2, was_after_ns - every_ns)
    if longest_ns >= SECOND_NS:
        helps.append(f"--option horizon_s={longest_ns // SECOND_NS} or less")
    helps += _later(bundle, before_ns, end_ns - start_ns - after_ns)
    raise TraceError(
        f"{bundle.path}: need {what} --until, {days(need_ns)} d with a horizon of "
        f"{days(horizon_ns)} d, was {days(was_ns)} d: use {', or '.join(helps)}"
    )


def _later(bundle: Bundle, first_ns: int, last_ns: int) -> Iterator[str]:
    """Yield a range for --until that would do, and a longer trace."""
    if isinstance(bundle, EarlierPart):  # a fold
        yield "a later --until"
        return
    if first_ns < last_ns:
        first, last = math.ceil(100 * first_ns / _DAY_NS) / 100, 100 * last_ns // _DAY_NS / 100
        yield f"--until from {first:g}d to {last:g}d"
    yield "a longer trace"


def days(length_ns: int) -> str:
    """Return a length of time in days, to four digits."""
    return f"{length_ns / _DAY_NS:.4g}"
