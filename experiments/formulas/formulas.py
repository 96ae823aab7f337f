"""The closed formulas of prediction, migration, two levels of checkpoints and per-step recovery.

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

    (Aupy, Robert, Vivien, Zaidouni, 2014.) The period T, checkpoint included.
    """
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
    """Return the wasted share when every prediction is trusted.

    ``1 - (1 - C/T)(1 - [(1-r) L + D + R + (r/p) Cp]/mu)`` (Aupy et al., 2014), where their T/2 is
    replaced by the work since any checkpoint, ``L = m [1 - (m/T)(1 - e^(-T/m))]`` with
    ``m = p mu / r``, the time between predictions: the mean of the age in a period of length T, cut
    short at a rate 1/m.
    """
    between = precision * mtbf_s / recall
    since = between * (1 - between / period_s * -math.expm1(-period_s / between))
    loss = (1 - recall) * since + detect_s + restart_s + recall / precision * proactive_save_s
    return 1 - (1 - save_s / period_s) * (1 - loss / mtbf_s)


# --- migration: be elsewhere when it strikes ---


def migration_period_s(*, save_s: float, mtbf_s: float, recall: float) -> float:
    """Return ``T = sqrt(2 C mu / (1 - r))``, seconds: only what is not predicted strikes."""
    return math.sqrt(2 * save_s * mtbf_s / (1 - recall))


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


# --- two levels of checkpoints ---


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


# --- per-step recovery ---


def per_step_efficiency(*, groups: int, step_s: float, mtbf_s: float, rejoin_s: float) -> float:
    """Return the useful share of time when a failure costs one step and one group's absence.

    ``a commit`` with ``a = 1/(1 + lam t_rec)``, ``commit = exp(-groups a lam step)`` and ``lam``
    the failure rate of one group. Poisson failures; where they come every ``mtbf_s`` sharp,
    ``commit = 1 - step/mtbf``.
    """
    rate = 1 / (groups * mtbf_s)
    there = 1 / (1 + rate * rejoin_s)
    return there * math.exp(-groups * there * rate * step_s)
