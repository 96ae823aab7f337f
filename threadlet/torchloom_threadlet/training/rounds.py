"""How often LocalSGD and DiLoCo synchronise, as knobs that all ranks change at one sync.

torchft has no public way to change it. Its step counter asserts that it never passes the end of a
round, and a joiner takes over knobs during a sync: so a value waits here for the first step of a
round, where no step is counted yet and no allreduce is in flight.
"""

from collections.abc import Mapping
from typing import Any

EVERY = "sync_every"
DELAY = "fragment_sync_delay"


class Rounds:
    """The rounds of one LocalSGD or DiLoCo, each a sync and the inner steps before it."""

    def __init__(self, local_sgd: Any) -> None:
        self._local_sgd = local_sgd
        self._fragments = list(getattr(local_sgd, "_fragments", ()))
        self._of_next: dict[str, int] = {}
        local_sgd._local_optimizer.register_step_pre_hook(self._begin_step)

    def register(self, loom: Any) -> None:
        """Register ``sync_every``, and with fragments ``fragment_sync_delay``."""
        loom.knob(
            EVERY,
            self._every,
            lambda value: self._of_next.update({EVERY: value}),
            kind="int",
            low=self._parts,
            fence="run",
            check=self._check,
            doc="inner steps between two syncs of the model, or of each fragment",
        )
        if self._fragments:
            loom.knob(
                DELAY,
                self._delay,
                lambda value: self._of_next.update({DELAY: value}),
                kind="int",
                low=0,
                fence="run",
                check=self._check,
                doc="inner steps from the start of a fragment's allreduce to the wait for it",
            )

    @property
    def _parts(self) -> int:
        return max(1, len(self._fragments))

    def _every(self) -> int:
        return self._of_next.get(EVERY, int(self._local_sgd._sync_every) * self._parts)

    def _delay(self) -> int:
        return self._of_next.get(DELAY, int(self._local_sgd._fragment_sync_delay))

    def _check(self, values: Mapping[str, Any]) -> None:
        every, delay, parts = values[EVERY], values.get(DELAY, 0), self._parts
        if every % parts:
            raise ValueError(f"need a multiple of the {parts} fragments, was {every}")
        if every // parts <= delay:
            raise ValueError(
                f"need {EVERY} // fragments > {DELAY}, was {every} // {parts} with a delay of "
                f"{delay}"
            )

    def _begin_step(self, optimizer: object, args: object, kwargs: object) -> None:
        if not self._of_next or self._local_sgd._local_step:
            return
        every = self._every()
        self._local_sgd._sync_every = every // self._parts
        if self._fragments:
            delay = self._delay()
            self._local_sgd._fragment_sync_delay = delay
            for place, fragment in enumerate(self._fragments, 1):
                fragment._sync_every = every
                fragment._fragment_sync_delay = delay
                fragment._fragment_sync_offset = every // self._parts * place
        self._of_next = {}
