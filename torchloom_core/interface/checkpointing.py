"""Checkpoint intervals: the optimum, the ETTR, and the expected loss of a failure.

A checkpoint policy, the backtest and the fleet model's formulas share these. All times are
seconds; ``tau`` is the *work* between two checkpoints, the time to save not counted.
"""

import math
from collections.abc import Sequence

_LARGEST_EXPONENT = 700.0
"""exp() of more than this overflows; the ETTR is 0 there."""


def young_s(*, save_s: float, mtbf_s: float) -> float:
    """Return Young's work between checkpoints, ``sqrt(2 C M)``.

    Parameters
    ----------
    save_s : float
        C, time to save a checkpoint.
    mtbf_s : float
        M, the job's mean time between failures, > 0.

    References
    ----------
    J. W. Young, "A first order approximation to the optimum checkpoint interval", 1974.

    Examples
    --------
    >>> from torchloom_core.plugin import young_s
    >>> round(young_s(save_s=30.0, mtbf_s=11135.0))
    817
    """
    return math.sqrt(2.0 * save_s * mtbf_s)


def daly_s(*, save_s: float, mtbf_s: float) -> float:
    """Return Daly's higher-order work between checkpoints.

    ``sqrt(2 C M) [1 + sqrt(C / 2M) / 3 + (C / 2M) / 9] - C`` for ``C < 2M``, else ``M``.

    Parameters
    ----------
    save_s, mtbf_s : float
        C and M, as in :func:`young_s`.

    References
    ----------
    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
    2006, equation 37.

    Examples
    --------
    >>> from torchloom_core.plugin import daly_s
    >>> round(daly_s(save_s=30.0, mtbf_s=11135.0)), round(daly_s(save_s=60.0, mtbf_s=828.0))
    (797, 276)
    """
    if save_s >= 2.0 * mtbf_s:
        return mtbf_s
    ratio = save_s / (2.0 * mtbf_s)
    higher = 1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0
    return young_s(save_s=save_s, mtbf_s=mtbf_s) * higher - save_s


def tier_intervals_s(
    costs: Sequence[tuple[float, float]], overhead: float = math.inf
) -> list[float]:
    """Return the work between checkpoints of each tier.

    Each tier has Daly's interval for its cost and for the failures that no tier before it
    survives. To first order that is the optimum of several levels: with ``n = sqrt(C2 l1 / (C1
    l2))`` checkpoints of level 1 for each of level 2, the interval of level 2 is ``sqrt((n C1 +
    C2) / ((l1 / n + l2) / 2)) = sqrt(2 C2 / l2)``, Young's.

    Where all tiers together would cost more than ``overhead``, all intervals are stretched by the
    same factor, which loses the least work for that overhead.

    Parameters
    ----------
    costs : sequence of (float, float)
        C and M of each tier, seconds: what a save costs the run, and the mean time between the
        failures that need this tier.
    overhead : float
        The most that the sum of C / tau over the tiers may be.

    Examples
    --------
    >>> from torchloom_core.plugin import tier_intervals_s
    >>> memory, path = (0.1, 14_400.0), (5.0, 144_000.0)
    >>> [round(interval_s, 1) for interval_s in tier_intervals_s([memory, path])]
    [53.6, 1196.7]
    >>> [round(interval_s, 1) for interval_s in tier_intervals_s([memory, path], overhead=0.003)]
    [108.0, 2410.9]
    """
    wanted = [daly_s(save_s=save_s, mtbf_s=mtbf_s) for save_s, mtbf_s in costs]
    shares = [save_s / tau for (save_s, _), tau in zip(costs, wanted, strict=True) if tau > 0]
    stretch = max(1.0, sum(shares) / overhead)
    return [stretch * tau for tau in wanted]


def ettr(
    interval_s: float,
    *,
    save_s: float,
    mtbf_s: float,
    restart_s: float = 0.0,
    detect_s: float = 0.0,
) -> float:
    """Return the share of time that is useful work, in [0, 1], for Poisson failures.

    ``tau / [(M + D) e^(R / M) (e^((tau + C) / M) - 1)]``, where a failure may hit a save or a
    restart, but not the detection; Daly 2006, equation 20, with the detection time D added as in
    Bougeret et al., "Checkpointing strategies for parallel jobs", 2011.

    Parameters
    ----------
    interval_s : float
        tau; the share is 0 where it is not above 0.
    save_s, mtbf_s, restart_s, detect_s : float
        C, M, R and D.

    Examples
    --------
    >>> from torchloom_core.plugin import ettr
    >>> round(ettr(797.0, save_s=30.0, mtbf_s=11135.0, restart_s=60.0, detect_s=60.0), 4)
    0.9184
    """
    exponent = (interval_s + save_s) / mtbf_s
    if interval_s <= 0.0 or exponent + restart_s / mtbf_s > _LARGEST_EXPONENT:
        return 0.0
    total_s = (mtbf_s + detect_s) * math.exp(restart_s / mtbf_s) * math.expm1(exponent)
    return interval_s / total_s


def expected_unsaved_s(age_s: float, interval_s: float, horizon_s: float) -> float:
    """Return the work that a failure at a random time within ``horizon_s`` would lose.

    The unsaved work rises from ``age_s`` and falls back to 0 at every regular checkpoint; this
    is its mean over the horizon.

    Parameters
    ----------
    age_s : float
        Work since the last checkpoint. Above ``interval_s`` the next checkpoint is assumed to come
        now; above twice as much none is expected, and the unsaved work keeps rising.
    interval_s : float
        Work between two checkpoints.
    horizon_s : float
        How far ahead to look.

    Examples
    --------
    >>> from torchloom_core.plugin import expected_unsaved_s
    >>> expected_unsaved_s(600.0, 3600.0, 0.0), expected_unsaved_s(600.0, 3600.0, 1200.0)
    (600.0, 1200.0)
    >>> expected_unsaved_s(600.0, 3600.0, 36000.0)
    1800.0
    """
    if age_s > 2.0 * interval_s or horizon_s <= 0.0:
        return age_s + 0.5 * max(0.0, horizon_s)
    age_s = min(age_s, interval_s)
    area = _lost_until(age_s + horizon_s, interval_s) - _lost_until(age_s, interval_s)
    return area / horizon_s


def _lost_until(time_s: float, interval_s: float) -> float:
    """Return the integral of the unsaved work from a checkpoint until ``time_s`` after it."""
    if interval_s <= 0.0:
        return 0.0
    periods, rest_s = divmod(time_s, interval_s)
    return 0.5 * (periods * interval_s**2 + rest_s**2)
