"""How often LocalSGD and DiLoCo synchronise, as knobs that all ranks change at one sync.

torchft has no public way to change it. Its step counter asserts that it never passes the end of a
round, and a joiner takes over knobs during a sync: so a value waits here for the first step of a
round, where no step is counted yet and no allreduce is in flight.
"""

from collections.abc import Callable, Mapping
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
        every = "inner steps between two syncs of the model, or of each fragment"
        self._register(loom, EVERY, self._every, self._parts, every)
        if self._fragments:
            delay = "inner steps from the start of a fragment's allreduce to the wait for it"
            self._register(loom, DELAY, self._delay, 0, delay)

    def _register(self, loom: Any, name: str, get: Callable[[], int], low: int, doc: str) -> None:
        def put(value: int) -> None:
            self._of_next[name] = value

        loom.knob(name, get, put, kind="int", low=low, fence="run", check=self._check, doc=doc)

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
