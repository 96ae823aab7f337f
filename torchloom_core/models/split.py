"""How a trace's time is divided between learning, calibration and the score."""

from dataclasses import dataclass

from torchloom_core.clock import SECOND_NS
from torchloom_core.errors import TraceError
from torchloom_core.evaluate.labels import Task
from torchloom_core.trace.bundle import Bundle

_CALIBRATION_SHARE = 0.25
_DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Split:
    """Three stretches of time, a horizon apart: no outcome of one is decided in the next.

    Attributes
    ----------
    start_ns, fitted_until_ns : int
        The moments to learn from.
    calibrated_from_ns, calibrated_until_ns : int
        Those to set probabilities and threshold on: the last quarter of what the two horizons
        before ``until_ns`` leave of the time.
    until_ns, end_ns : int
        Those to score.
    """

    start_ns: int
    fitted_until_ns: int
    calibrated_from_ns: int
    calibrated_until_ns: int
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
            f"{_days(end_ns - start_ns)} days, was day {_days(until_ns - start_ns)}"
        )
    every_ns = round(every_s * SECOND_NS)
    usable_ns = until_ns - start_ns - 2 * task.horizon_ns
    cut_ns = until_ns - task.horizon_ns - round(_CALIBRATION_SHARE * usable_ns)
    cut_ns -= (cut_ns - start_ns) % every_ns
    for name, need_ns, length_ns in (
        (
            "two horizons and four moments before that end",
            2 * task.horizon_ns + 4 * every_ns,
            until_ns - start_ns,
        ),
        (
            "a horizon and a moment after that end, to be scored",
            task.horizon_ns + every_ns,
            end_ns - until_ns,
        ),
    ):
        if length_ns < need_ns:
            raise TraceError(
                f"{bundle.path}: need {name}, {_days(need_ns)} days, was {_days(length_ns)}"
            )
    return Split(
        start_ns=start_ns,
        fitted_until_ns=cut_ns - task.horizon_ns,
        calibrated_from_ns=cut_ns,
        calibrated_until_ns=until_ns - task.horizon_ns,
        until_ns=until_ns,
        end_ns=end_ns,
    )


def _days(length_ns: int) -> str:
    return f"{length_ns / SECOND_NS / _DAY_S:.4g}"
