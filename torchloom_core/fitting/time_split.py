"""How a trace's time is divided between learning, calibration and the score."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torchloom_core.clock import SECOND_NS, moment_text
from torchloom_core.errors import TraceError
from torchloom_core.evaluate.forecasts.labels import Task
from torchloom_core.fitting.earlier_part import EarlierPart
from torchloom_core.trace.bundle.bundle import Bundle

_CALIBRATION_SHARE = 0.25
_DAY_NS = 86_400 * SECOND_NS


@dataclass(frozen=True, kw_only=True)
class Split:
    """Stretches of time, a horizon apart: no outcome of one is decided in the next.

    Attributes
    ----------
    start_ns, first_until_ns : int
        The moments to learn from to be calibrated.
    calibrated_from_ns, calibrated_until_ns : int
        Those to set probabilities and threshold on: the last quarter of what the two horizons
        before ``until_ns`` leave of the time.
    fitted_until_ns : int
        The last moment to learn from once calibrated, the last one before ``calibrated_until_ns``:
        between it and ``until_ns`` lies at least one, unless a horizon is shorter than from one
        moment to the next.
    until_ns, end_ns : int
        Those to score.
    """

    start_ns: int
    first_until_ns: int
    calibrated_from_ns: int
    calibrated_until_ns: int
    fitted_until_ns: int
    until_ns: int
    end_ns: int


def split(bundle: Bundle, task: Task, *, until_ns: int, every_s: float) -> Split:
    """Divide a trace at ``until_ns``.

    Raises
    ------
    TraceError
        If a part of the time is too short for a moment and a horizon.
    """
    start_ns, end_ns = bundle.manifest.start_ns, bundle.manifest.end_ns
    if not start_ns < until_ns < end_ns:
        raise TraceError(
            f"{bundle.path}: need an end of the training time in the trace's "
            f"{days(end_ns - start_ns)} days, was day {days(until_ns - start_ns)}; it is of "
            f"{moment_text(start_ns)} to {moment_text(end_ns)}"
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
    """Raise TraceError if the time on one side of ``until_ns`` is too short, and say what helps."""
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
        f"{bundle.path}: need {what} the end of the training time, {days(need_ns)} days with a "
        f"horizon of {days(horizon_ns)}, was {days(was_ns)}: give "
        f"{', or '.join(helps)}"
    )


def _later(bundle: Bundle, first_ns: int, last_ns: int) -> Iterator[str]:
    """Yield which other end of the training time would do, and that more time would."""
    if isinstance(bundle, EarlierPart):  # a fold, whose end nobody gave
        yield "a later --until"
        return
    if first_ns < last_ns:
        first, last = math.ceil(100 * first_ns / _DAY_NS) / 100, 100 * last_ns // _DAY_NS / 100
        yield f"--until from {first:g}d to {last:g}d"
    yield "a longer trace"


def days(length_ns: int) -> str:
    """Return a length of time in days, to four digits."""
    return f"{length_ns / _DAY_NS:.4g}"
