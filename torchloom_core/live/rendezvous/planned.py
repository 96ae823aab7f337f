"""The next generation for which the members are asked to vote, because it makes steps faster."""

from collections.abc import Callable
from dataclasses import dataclass

from torchloom_core.live.rendezvous.choice import (
    Known,
    rebalanced,
    with_experts_moved,
    with_standbys,
)
from torchloom_core.live.rendezvous.holdings import everything
from torchloom_core.wire.assignment import Assignment
from torchloom_core.wire.generations import Regroup

_BALANCE_S = 5.0  # between two looks at the measured times


@dataclass(slots=True)
class Planned:
    """What is asked for in the present generation: one change at a time.

    Attributes
    ----------
    asked_for : int
        The next generation, if members have been asked to vote for it; else 0.
    """

    asked_for: int = 0
    _balanced_s: float = 0.0

    def begin(self, now_s: float) -> None:
        """Begin a generation: nothing is asked for."""
        self.asked_for, self._balanced_s = 0, now_s

    def take_in(
        self, present: Assignment, standbys: tuple[str, ...], known: Callable[[], Known]
    ) -> Regroup | None:
        """Return what to ask for, if a standby would make steps faster."""
        if self.asked_for or not standbys:
            return None
        return self._ask(present, with_standbys(present, everything(present), standbys, known()))

    def balance(
        self, present: Assignment, now_s: float, known: Callable[[], Known]
    ) -> Regroup | None:
        """Return what to ask for, if moving layers off slow workers, or experts, would pay."""
        if self.asked_for or now_s - self._balanced_s < _BALANCE_S:
            return None
        self._balanced_s = now_s
        now = known()
        better = rebalanced(present, everything(present), now) or with_experts_moved(present, now)
        return self._ask(present, better)

    def _ask(self, present: Assignment, better: Assignment | None) -> Regroup | None:
        if better is None:
            return None
        self.asked_for = present.generation + 1
        return Regroup(next=self.asked_for, why=better.why)
