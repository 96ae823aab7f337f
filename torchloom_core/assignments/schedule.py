"""How long a pipeline's schedule takes for one replica and step.

The schedules are those of ``torch.distributed.pipelining`` that a worker uses: 1F1B, and GPipe
where there are fewer micro-batches than stages.
"""

from collections.abc import Sequence
from functools import lru_cache

_FORWARD = 1 / 3
"""Share of forward in a layer's time; it hardly matters, as each stage does both."""

_MOST = 20_000
"""Passes of micro-batches through stages that are looked at one by one."""


@lru_cache(maxsize=4096)
def schedule_s(stages: tuple[float, ...], micro_batches: int) -> float:
    """Return when the last stage's passes are over.

    A slow stage near the start costs less than one near the end: others' passes fill its waits.
    For more than 20,000 passes, the time of a schedule in which nothing fills them.

    Parameters
    ----------
    stages : tuple of float, (stages,)
        Seconds of forward and backward of one micro-batch in each stage.

    Examples
    --------
    >>> round(schedule_s((1.0, 1.0), 3), 3)
    4.0
    >>> round(schedule_s((2.0, 1.0), 3), 3), round(schedule_s((1.0, 2.0), 3), 3)
    (6.333, 7.0)
    """
    count = len(stages)
    if 2 * count * micro_batches > _MOST:
        return (micro_batches - 1) * max(stages) + sum(stages)
    orders = [_order(count - stage, count, micro_batches) for stage in range(count)]
    ended = [[[0.0] * micro_batches, [0.0] * micro_batches] for _ in stages]
    free_s = [0.0] * count
    done = [0] * count
    passed = [[0, 0] for _ in stages]
    moves = True
    while moves:
        moves = False
        for stage in range(count):
            while done[stage] < len(orders[stage]):
                is_backward = orders[stage][done[stage]]
                number = passed[stage][is_backward]
                before = stage + 1 if is_backward else stage - 1
                begins_s = free_s[stage]
                if 0 <= before < count:
                    if passed[before][is_backward] <= number:
                        break
                    begins_s = max(begins_s, ended[before][is_backward][number])
                share = 1 - _FORWARD if is_backward else _FORWARD
                free_s[stage] = begins_s + share * stages[stage]
                ended[stage][is_backward][number] = free_s[stage]
                passed[stage][is_backward] += 1
                done[stage] += 1
                moves = True
    return round(max(free_s), 12)  # equal layouts take equally long


def _order(left: int, stages: int, micro_batches: int) -> Sequence[bool]:
    """Return the passes of a stage with ``left`` stages to the end: whether each is backward."""
    first = left if micro_batches >= stages else micro_batches
    pairs = micro_batches - first
    return [False] * first + [True, False] * pairs + [True] * first
