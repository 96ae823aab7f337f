"""Nodes that fail and are repaired, as one would write them with simpy."""

from collections.abc import Generator, Iterable, Sequence
from typing import Any, Literal

import simpy

Lifetimes = Iterable[tuple[float, float]]
"""How long a node lasts, and how long its repair then takes, seconds; again and again."""

Processes = Generator[simpy.Event, Any, None]


class Books:
    """The accounting of a backtest: events with their times, and GPU time by state.

    Attributes
    ----------
    record : list of (float, str, str)
        When, what, which node.
    spare_gpu_s, repair_gpu_s : float
        Booked up to the last call.
    """

    def __init__(self, gpus: int) -> None:
        self.record: list[tuple[float, Literal["fault", "repaired"], str]] = []
        self.spare_gpu_s = self.repair_gpu_s = 0.0
        self._spare, self._away = gpus, 0
        self._since_s = 0.0

    def move(self, gpus: int, now_s: float) -> None:
        """Have so many GPUs be in repair that were not."""
        lasted_s = now_s - self._since_s
        self.spare_gpu_s += self._spare * lasted_s
        self.repair_gpu_s += self._away * lasted_s
        self._spare -= gpus
        self._away += gpus
        self._since_s = now_s


def booked(
    names: Sequence[str], lifetimes: Sequence[Lifetimes], gpus_per_node: int, until_s: float
) -> Books:
    """Let the nodes fail and be repaired until ``until_s``, and keep books."""
    env = simpy.Environment()
    books = Books(gpus_per_node * len(names))

    def node(name: str, own: Lifetimes) -> Processes:
        for lasts_s, repair_s in own:
            yield env.timeout(lasts_s)
            books.record.append((env.now, "fault", name))
            books.move(gpus_per_node, env.now)
            yield env.timeout(repair_s)
            books.record.append((env.now, "repaired", name))
            books.move(-gpus_per_node, env.now)

    for name, own in zip(names, lifetimes, strict=True):
        env.process(node(name, own))
    env.run(until=until_s)
    books.move(0, until_s)
    return books


def bare(lifetimes: Sequence[Lifetimes], until_s: float) -> tuple[int, int]:
    """Do the same but only count; return failures and repairs."""
    env = simpy.Environment()
    failures = repairs = 0

    def node(own: Lifetimes) -> Processes:
        nonlocal failures, repairs
        for lasts_s, repair_s in own:
            yield env.timeout(lasts_s)
            failures += 1
            yield env.timeout(repair_s)
            repairs += 1

    for own in lifetimes:
        env.process(node(own))
    env.run(until=until_s)
    return failures, repairs
