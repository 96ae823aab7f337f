"""The batches of a training loop, from where a checkpoint was saved, and again after a rewind."""

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torchloom_threadlet.checkpoint.loader_state import samplers_by_epoch
from torchloom_threadlet.checkpoint.state import random_states, set_random_states

_REPEATED = 5

_logger = logging.getLogger(__name__)


class Position:
    """Where a loop is in its data; part of a rank's state.

    A loader with a state of its own restores its position itself. Of any other the batches are
    counted, and as many are read again from the same shuffle, for which the random states at the
    begin of the epoch are kept.
    """

    def __init__(self) -> None:
        self.epoch = self.batch = 0
        self._at_epoch: dict[str, Any] | None = None
        self._is_restored = False
        self.restores = 0
        self.skip = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch, the batches of it that were read, and its first random states."""
        return {"epoch": self.epoch, "batch": self.batch, "random": self._at_epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from here at the next batch."""
        self.epoch, self.batch = state["epoch"], state["batch"]
        self._at_epoch, self._is_restored = state["random"], True
        self.restores += 1

    def begin_epoch(self, loader: Any, *, has_state: bool) -> Iterator[Any]:
        """Return an iterator of the epoch's batches that are left."""
        by_epoch = samplers_by_epoch(loader)
        for sampler in by_epoch:
            sampler.set_epoch(self.epoch)
        is_within = self._is_restored and self.batch > 0 and self._at_epoch is not None
        begins_now = self._is_restored and has_state and bool(by_epoch)
        self._is_restored = False
        now = random_states()
        if has_state or not is_within:
            if not has_state:
                self.batch, self._at_epoch = 0, now
            batches: Iterator[Any] = iter(loader)
            if begins_now:  # see resume_loader: an undisturbed run draws nothing here
                set_random_states(now)
            return batches
        assert self._at_epoch is not None
        set_random_states(self._at_epoch)
        batches = iter(loader)
        if sum(1 for _ in itertools.islice(batches, self.batch)) < self.batch:
            _logger.warning("the data have fewer batches than at the checkpoint")
        set_random_states(now)
        return batches


def batches(
    loader: Any, steps: int, position: Position, step_of: Callable[[], int], *, has_state: bool
) -> Iterator[tuple[int, Any]]:
    """Yield each step with its batch; ``step_of`` returns the last step that is done.

    Raises ValueError if the loader has no batch.
    """
    is_empty, repeated = False, 0
    while step_of() + 1 < steps:
        restores, count = position.restores, 0
        for batch in position.begin_epoch(loader, has_state=has_state):
            count += 1
            position.batch += 1
            if position.skip:
                position.skip -= 1
                continue
            step = step_of() + 1
            if step >= steps:
                return
            yield step, batch
            repeated = repeated + 1 if step_of() < step else 0
            if repeated == _REPEATED:
                _logger.warning(
                    "checkpoints.batches: step %d was done %d times: need loom.step() after each "
                    "step",
                    step, repeated,
                )  # fmt: skip
            if position.restores != restores:
                break
        else:
            position.epoch, position.batch = position.epoch + 1, 0
            if is_empty and not count:
                raise ValueError("checkpoints.batches: need a loader with batches, has none")
            is_empty = not count
