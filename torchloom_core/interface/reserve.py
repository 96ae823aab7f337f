"""The cost of a node that is unavailable: after a move, under inspection, or cordoned.

For policies that move groups or cordon nodes; public, like :mod:`torchloom_core.plugin`.
"""

import math

from torchloom_core.config.schema import Costs


class Reserve:
    """The standbys of a run, and the expected cost of one standby less for a time.

    A move uses up a standby until another one can run on the old nodes, which a cordon delays.
    That costs nothing unless more failures come meanwhile than there are standbys ``left``. Each
    failure uses up a standby for ``costs.repair_s``. With Poisson failures at the rate
    ``failures_per_s``, a standby is missing with the probability

        q = P(N > left),    N ~ Poisson(failures_per_s x min(away + replace, repair))

    and then costs the time of the unavailable GPUs, and the wait of all others:

        q [away x its GPUs + replace x its GPUs + others_wait x others' GPUs]

    In a run without standbys ``left`` is -1 and q is 1. The view does not know cold spares: if
    there are some, a standby is replaced sooner, and the price is too high.

    Parameters
    ----------
    costs : Costs
        The prices.
    run_gpus : float
        GPUs of the run.
    failures_per_s : float
        Failures of the run per second, without the one that the action avoids, >= 0.
    left : int
        How many standbys are left meanwhile; -1 in a run without standbys.

    Examples
    --------
    >>> from torchloom_core.plugin import Costs, Reserve
    >>> costs = Costs(migrate_s=30.0, inspect_s=3600.0, replace_s=600.0, others_wait_s=600.0)
    >>> for left in (3, 1, 0, -1):
    ...     reserve = Reserve(costs, run_gpus=2048.0, failures_per_s=1e-5, left=left)
    ...     print(round(reserve.move_gpu_s(8.0)), round(reserve.away_gpu_s(8.0, 7 * 86_400.0)))
    61440 71316
    62519 1300654
    113165 3510040
    1319040 6067200
    """

    def __init__(self, costs: Costs, *, run_gpus: float, failures_per_s: float, left: int) -> None:
        self._costs = costs
        self._run_gpus = run_gpus
        self._failures_per_s = failures_per_s
        self.left = left

    def move_gpu_s(self, gpus: float) -> float:
        """Return the price of moving a group with ``gpus`` GPUs, GPU-seconds.

        It is the pause of all GPUs plus the price of the inspection of the old nodes.
        """
        return self._costs.migrate_s * self._run_gpus + self.inspected_gpu_s(gpus)

    def inspected_gpu_s(self, gpus: float) -> float:
        """Return the price of an inspection of ``gpus`` GPUs, GPU-seconds."""
        return self.away_gpu_s(gpus, self._costs.inspect_s)

    def away_gpu_s(self, gpus: float, away_s: float) -> float:
        """Return the price of ``gpus`` GPUs being unavailable for ``away_s``, GPU-seconds."""
        costs = self._costs
        unready_s = min(away_s + costs.replace_s, costs.repair_s)
        missed = _more_than(self.left, self._failures_per_s * unready_s)
        others = max(0.0, self._run_gpus - gpus)
        return missed * ((away_s + costs.replace_s) * gpus + costs.others_wait_s * others)


def _more_than(count: int, expected: float) -> float:
    """Return the probability that a Poisson variable exceeds ``count``, however small."""
    if count < 0:
        return 1.0
    if expected <= 0.0:
        return 0.0
    log_expected = math.log(expected)

    def weight(k: int) -> float:
        return math.exp(k * log_expected - expected - math.lgamma(k + 1))

    if count < expected:
        return 1.0 - math.fsum(map(weight, range(count + 1)))
    k = count + 1
    term, tail = weight(k), 0.0
    while term > tail * 1e-17:
        tail += term
        k += 1
        term *= expected / k
    return tail
