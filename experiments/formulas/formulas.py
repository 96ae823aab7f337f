"""The closed formulas of checkpointing, prediction, migration and spares.

Those that a running job needs as well, Young's and Daly's interval and the exact ETTR,
are in :mod:`torchloom_core.interface.checkpointing`.

Symbols, in seconds unless noted otherwise:

=================  ==============================================================================
``mtbf_s``         M or mu, mean time between the failures of the whole job
``save_s``         C, what a checkpoint costs
``restart_s``      R, from the end of detection to work; a failure in it starts detection again
``detect_s``       D, until a failure is noticed and its nodes are known; no failure counts in it
``interval_s``     tau, the work between two checkpoints, their cost *not* counted
``period_s``       T = tau + C, the same with it
``recall``         r, share of failures that are predicted
``precision``      p, share of predictions that come true
=================  ==============================================================================

The commonest mistake is to take tau for T. The waste is flat around its optimum: compare wastes,
never the intervals where they are least.
"""

import math

import numpy as np

from torchloom_core.interface.checkpointing import young_s

# --- one kind of checkpoint ---


def exact_interval_s(*, save_s: float, mtbf_s: float) -> float:
    """Return the work between checkpoints with the best share of useful time, ``M (1 + W0(...))``.

    The argument of Lambert's W0 is ``-exp(-C / M - 1)``; needs SciPy.

    Parameters
    ----------
    save_s, mtbf_s : float
        C and M, as in :func:`torchloom_core.plugin.young_s`.

    Examples
    --------
    >>> round(exact_interval_s(save_s=60.0, mtbf_s=828.0))
    277
    """
    from scipy.special import lambertw

    return float(mtbf_s * (1.0 + lambertw(-math.exp(-save_s / mtbf_s - 1.0)).real))


def daly_first_order_s(*, save_s: float, mtbf_s: float) -> float:
    """Return ``tau = sqrt(2 C M) - C`` (Daly, 2006, first order), seconds; may be negative."""
    return young_s(save_s=save_s, mtbf_s=mtbf_s) - save_s


def ettr_meta(*, save_s: float, mtbf_s: float, downtime_s: float, interval_s: float) -> float:
    """Return Meta's estimate ``(1 - (u0 + tau/2)/M) / (1 + C/tau)``.

    (Kokolis et al., 2025, "Revisiting reliability", arXiv 2410.21680.) ``downtime_s`` is u0, all
    that a failure costs beside lost work. Good only while ``(u0 + tau/2)/M < 0.2``.
    """
    lost = (downtime_s + interval_s / 2) / mtbf_s
    return (1 - lost) / (1 + save_s / interval_s)


# --- prediction: save a checkpoint just before ---


def prediction_period_s(
    *,
    save_s: float,
    mtbf_s: float,
    proactive_save_s: float,
    restart_s: float,
    detect_s: float,
    recall: float,
    precision: float,
) -> float:
    """Return ``T* = sqrt(2 C (mu - (D + R + r Cp/p)) / (1 - r))``, seconds.

    (Aupy, Robert, Vivien, Zaidouni, 2014.) The period T, checkpoint included; inf if all
    failures are predicted.
    """
    if recall >= 1:
        return math.inf
    loss = detect_s + restart_s + recall * proactive_save_s / precision
    return math.sqrt(2 * save_s * (mtbf_s - loss) / (1 - recall))


def prediction_waste(
    *,
    save_s: float,
    mtbf_s: float,
    proactive_save_s: float,
    restart_s: float,
    detect_s: float,
    recall: float,
    precision: float,
    period_s: float,
) -> float:
    """Return the wasted share when every prediction is trusted (Aupy et al., 2014).

    ``1 - (1 - C/T)(1 - [(1-r) T/2 + D + R + (r/p) Cp]/mu)``. It ignores that a proactive
    checkpoint also shortens the loss of later failures: good only for ``T << p mu / r``.
    """
    loss = (
        (1 - recall) * period_s / 2 + detect_s + restart_s + recall / precision * proactive_save_s
    )
    return 1 - (1 - save_s / period_s) * (1 - loss / mtbf_s)


def prediction_waste_long(
    *,
    save_s: float,
    mtbf_s: float,
    proactive_save_s: float,
    restart_s: float,
    detect_s: float,
    recall: float,
    precision: float,
    period_s: float,
) -> float:
    """Return :func:`prediction_waste` with T/2 replaced by the work since any checkpoint.

    ``L = m [1 - (m/T)(1 - e^(-T/m))]`` with ``m = p mu / r``, the time between predictions: the
    mean of the age in a period of length T, cut short at a rate 1/m.
    """
    between = precision * mtbf_s / recall
    since = between * (1 - between / period_s * -math.expm1(-period_s / between))
    loss = (1 - recall) * since + detect_s + restart_s + recall / precision * proactive_save_s
    return 1 - (1 - save_s / period_s) * (1 - loss / mtbf_s)


# --- migration: be elsewhere when it strikes ---


def migration_period_s(*, save_s: float, mtbf_s: float, recall: float) -> float:
    """Return ``T = sqrt(2 C mu / (1 - r))``, seconds: only what is not predicted strikes."""
    return math.inf if recall >= 1 else math.sqrt(2 * save_s * mtbf_s / (1 - recall))


def migration_waste(
    *,
    save_s: float,
    mtbf_s: float,
    pause_s: float,
    restart_s: float,
    detect_s: float,
    recall: float,
    precision: float,
    period_s: float,
) -> float:
    """Return the wasted share when every prediction is answered with a migration.

    ``1 - (1 - C/T)(1 - [(1-r)(T/2 + D + R) + (r/p) G]/mu)`` with G the pause of one migration,
    first order.
    """
    loss = (1 - recall) * (period_s / 2 + detect_s + restart_s) + recall / precision * pause_s
    return 1 - (1 - save_s / period_s) * (1 - loss / mtbf_s)


def migrate_pays(
    *, precision: float, detect_s: float, restart_s: float, unsaved_s: float, pause_s: float
) -> bool:
    """Return whether a migration gains on average: ``p (D + R + unsaved work) > G``."""
    return precision * (detect_s + restart_s + unsaved_s) > pause_s


def break_even_precision(
    *, detect_s: float, restart_s: float, unsaved_s: float, pause_s: float
) -> float:
    """Return the precision above which :func:`migrate_pays`; over 1 if it never does."""
    loss_s = detect_s + restart_s + unsaved_s
    return pause_s / loss_s if loss_s else math.inf


# --- two levels of checkpoints ---


def two_level_count(
    *, local_save_s: float, durable_save_s: float, job_mtbf_s: float, node_mtbf_s: float
) -> float:
    """Return ``n* = sqrt(C2 l1 / (C1 l2))``, segments to a pattern, each ended by a local save.

    (Benoit, Cavelan, Robert, Sun, 2016.) Round it to a whole number, 1 at least. Level 1, rate
    ``l1 = 1/job_mtbf_s``: faults that a local checkpoint survives; level 2: those that it does
    not.
    """
    return math.sqrt(durable_save_s * node_mtbf_s / (local_save_s * job_mtbf_s))


def two_level_work_s(
    *,
    local_save_s: float,
    durable_save_s: float,
    job_mtbf_s: float,
    node_mtbf_s: float,
    segments: int,
) -> float:
    """Return ``W* = sqrt((n C1 + C2) / ((l1/n + l2)/2))``, the work of a pattern, seconds."""
    loss = (1 / job_mtbf_s / segments + 1 / node_mtbf_s) / 2
    return math.sqrt((segments * local_save_s + durable_save_s) / loss)


def two_level_ettr(
    *,
    local_save_s: float,
    durable_save_s: float,
    local_restart_s: float,
    durable_restart_s: float,
    job_mtbf_s: float,
    node_mtbf_s: float,
    segments: int,
    work_s: float,
) -> float:
    """Return the useful share of time of a two-level pattern, first order.

    ``1/(1 + H)``, ``H = (n C1 + C2)/W + (l1/n + l2) W/2 + l1 R1 + l2 R2``.
    """
    overhead = (
        (segments * local_save_s + durable_save_s) / work_s
        + (1 / job_mtbf_s / segments + 1 / node_mtbf_s) * work_s / 2
        + local_restart_s / job_mtbf_s
        + durable_restart_s / node_mtbf_s
    )
    return 1 / (1 + overhead)


def two_level_ettr_exact(
    *,
    local_save_s: float,
    durable_save_s: float,
    local_restart_s: float,
    durable_restart_s: float,
    job_mtbf_s: float,
    node_mtbf_s: float,
    segments: int,
    work_s: float,
) -> float:
    """Return the useful share of time of a two-level pattern, exact for Poisson failures.

    The expected time of a pattern solves a linear system: from the start of each segment, and
    from each restart, it is the time to its end or to the next failure, and what follows from
    there. The last segment ends with both saves, and a failure in them loses it; failures
    strike restarts too.
    """
    rate = 1 / job_mtbf_s + 1 / node_mtbf_s
    to_durable = 1 / node_mtbf_s / rate
    saves = [local_save_s] * segments
    saves[-1] += durable_save_s
    # Unknowns: a pattern's time from segment i, from the local restart to i, from the durable one.
    deep = 2 * segments
    system, known = np.eye(deep + 1), np.zeros(deep + 1)

    def leave(state: int, lasts_s: float, to: int | None, at_fault: tuple[int, int]) -> None:
        done = math.exp(-rate * lasts_s)
        known[state] += (1 - done) / rate
        if to is not None:
            system[state, to] -= done
        system[state, at_fault[0]] -= (1 - done) * (1 - to_durable)
        system[state, at_fault[1]] -= (1 - done) * to_durable

    for i, save_s in enumerate(saves):
        following = i + 1 if i + 1 < segments else None
        leave(i, work_s / segments + save_s, following, (segments + i, deep))
        leave(segments + i, local_restart_s, i, (segments + i, deep))
    leave(deep, durable_restart_s, 0, (deep, deep))
    return float(work_s / np.linalg.solve(system, known)[0])


# --- per-step recovery, spares ---


def per_step_efficiency(*, groups: int, step_s: float, mtbf_s: float, rejoin_s: float) -> float:
    """Return the useful share of time when a failure costs one step and one group's absence.

    ``a commit`` with ``a = 1/(1 + lam t_rec)``, ``commit = exp(-groups a lam step)`` and ``lam``
    the failure rate of one group. Poisson failures; where they come every ``mtbf_s`` sharp,
    ``commit = 1 - step/mtbf``.
    """
    rate = 1 / (groups * mtbf_s)
    there = 1 / (1 + rate * rejoin_s)
    return there * math.exp(-groups * there * rate * step_s)


def spares_needed(
    *, nodes: int, failures_per_node_s: float, repair_s: float, confidence: float
) -> int:
    """Return the least k with ``P(Binomial(N, 1 - e^(-rate t_repair)) <= k) >= q``."""
    from scipy.stats import binom

    return int(binom.ppf(confidence, nodes, -math.expm1(-failures_per_node_s * repair_s)))
