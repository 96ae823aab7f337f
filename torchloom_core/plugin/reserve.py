"""What it costs a run that a node is away: one that was left, is inspected, or is cordoned.

For policies that move groups or cordon nodes: public, like :mod:`torchloom_core.plugin`.
"""

import math

from torchloom_core.config.schema import Costs


class Reserve:
    """The standbys of a run, and what it costs to have one less of them for a while.

    A move uses up a standby until another can sit on the nodes that were left, and a cordon
    keeps one from doing so. Nobody misses it unless more failures come meanwhile than there are
    standbys ``left``. Each failure uses one up for ``costs.repair_s``. Let failures come at
    random, ``failures_per_s`` of them; then one is missed with the probability

        q = P(N > left),    N ~ Poisson(failures_per_s x min(away + replace, repair))

    and costs the time of the GPUs that are away, and what a failure costs more without a
    standby:

        q [away x its GPUs + replace x its GPUs + others_wait x others' GPUs]

    Where nobody stood by before, ``left`` is -1 and q is 1. Cold spares are not known to the
    view: where there are some, a standby is made up sooner, and this is too dear.

    Parameters
    ----------
    costs : Costs
        The prices.
    run_gpus : float
        GPUs of the run.
    failures_per_s : float
        How often the run fails, apart from what the action avoids, >= 0.
    left : int
        How many standbys are left meanwhile; -1 where nobody stood by before.

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
        """Return the price of moving a group of so many GPUs, GPU-seconds.

        It is the pause of all, and that the nodes that are left are away.
        """
        return self._costs.migrate_s * self._run_gpus + self.inspected_gpu_s(gpus)

    def inspected_gpu_s(self, gpus: float) -> float:
        """Return what it costs that so many GPUs are away for inspection, GPU-seconds."""
        return self.away_gpu_s(gpus, self._costs.inspect_s)

    def away_gpu_s(self, gpus: float, away_s: float) -> float:
        """Return what it costs that so many GPUs are away for ``away_s``, GPU-seconds."""
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
