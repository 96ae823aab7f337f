"""A global batch whose size does not depend on the number of workers in a step.

For the user's training loop. With torchft's ``DistributedDataParallel`` and ``Optimizer``::

    batch = GlobalBatch(samples=len(images), size=256, micro_batch=32)
    manager.register_state_dict_fn("batch", batch.load_state_dict, batch.state_dict)
    while manager.current_step() < steps:
        optimizer.zero_grad()  # starts the quorum, which decides on the participants
        for part in batch.parts(manager, parallel):
            loss = cross_entropy(parallel(images[part.rows]), labels[part.rows])
            (part.weight * loss).backward()
        optimizer.step()

``loss`` is the mean over its samples. A mean over something else, such as the tokens of sequences
of different lengths, has to be converted to the mean over samples first.
"""

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch


class Part(NamedTuple):
    """One micro-batch.

    Attributes
    ----------
    rows : torch.Tensor
        The samples' indices in the data, shape ``(micro_batch,)`` or shorter, never empty.
    weight : float
        The factor for their mean loss. 0 if a worker contributes nothing but its part in the
        collectives: its sample then belongs to another worker.
    """

    rows: torch.Tensor
    weight: float


def split(size: int, micro_batch: int, rank: int, participants: int) -> list[tuple[range, float]]:
    """Return the micro-batches of one worker: places in the global batch, and their weight.

    Each place is in one micro-batch of one worker with a weight above 0. Every worker has the same
    number of micro-batches, since within FSDP each has collectives; if nothing is left for
    the last one, it is one sample with the weight 0.

    Parameters
    ----------
    size : int
        Samples in the global batch, any number.
    micro_batch : int
        The most samples in one micro-batch.
    rank, participants : int
        The worker's, among those that share the step. The mean of gradients over
        ``participants`` is the gradient of the mean loss over the global batch.
    """
    count, longer = divmod(size, participants)
    first = rank * count + min(rank, longer)
    last = first + count + (rank < longer)
    rounds = -(-(count + (longer > 0)) // micro_batch)
    parts = []
    for begin in range(first, first + rounds * micro_batch, micro_batch):
        places = range(min(begin, last), min(begin + micro_batch, last))
        parts.append((places or range(1), participants * len(places) / size))
    return parts


class GlobalBatch:
    """The global batch of each step: its samples, and one worker's share.

    Samples are taken in a random order, each once per epoch. A step's samples follow from its
    number alone, so that a step that was not committed takes them again, and none is lost
    when workers join and leave. Both sizes may be changed between two steps; see :meth:`register`.

    Parameters
    ----------
    samples : int
        The number of samples in the data.
    size : int
        The size of the global batch.
    micro_batch : int
        The most samples in one forward pass, limited by memory.
    seed : int
        The seed of the order. The same on all workers.
    group_rank, group_size : int
        This worker in its replica group, if the group averages gradients over its workers
        (FSDP, HSDP).
    """

    def __init__(
        self,
        samples: int,
        size: int,
        micro_batch: int,
        *,
        seed: int = 0,
        group_rank: int = 0,
        group_size: int = 1,
    ) -> None:
        self._samples = _positive("samples", samples)
        self._size = _positive("size", size)
        self._micro_batch = _positive("micro_batch", micro_batch)
        self._seed = seed
        self._group_rank, self._group_size = group_rank, group_size
        self._since, self._taken = 0, 0
        self._order = lru_cache(maxsize=2)(self._shuffled)

    @property
    def size(self) -> int:
        """Samples in the global batch."""
        return self._size

    def resize(self, size: int, step: int) -> None:
        """Set the size of the global batch from ``step`` on, the next step."""
        _positive("size", size)
        self._taken += (step - self._since) * self._size
        self._since, self._size = step, size

    @property
    def micro_batch(self) -> int:
        """The most samples in one forward pass."""
        return self._micro_batch

    @micro_batch.setter
    def micro_batch(self, micro_batch: int) -> None:
        self._micro_batch = _positive("micro_batch", micro_batch)

    def rows(self, step: int) -> torch.Tensor:
        """Return the indices of the samples of ``step``'s global batch, shape ``(size,)``."""
        first = self._taken + (step - self._since) * self._size
        places = torch.arange(first, first + self._size, device="cpu")
        epochs, offsets = places // self._samples, places % self._samples
        rows = torch.empty_like(places)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            within = epochs == epoch
            rows[within] = self._order(epoch)[offsets[within]]
        return rows

    def share(self, step: int, rank: int | None, participants: int) -> list[Part]:
        """Return one worker's micro-batches.

        Parameters
        ----------
        step : int
            The number of the step.
        rank : int or None
            The worker's replica group in the step's quorum; None if it contributes nothing.
        participants : int
            Replica groups that contribute.
        """
        rows = self.rows(step)
        workers = max(participants, 1) * self._group_size
        worker = (rank or 0) * self._group_size + self._group_rank
        return [
            Part(rows[places.start : places.stop], 0.0 if rank is None else weight)
            for places, weight in split(self._size, self._micro_batch, worker, workers)
        ]

    def parts(self, manager: Any, parallel: Any = None) -> Iterator[Part]:
        """Yield this worker's micro-batches of the Manager's present step.

        Waits for the quorum, also with ``use_async_quorum=True``: it decides which groups share
        the batch. A group that joins then contributes nothing in its first step, and is not
        counted, except in the very first step of a run: there torchft counts the groups that
        get their weights from the first one, and their contribution is missing. With
        ``init_sync=False``, and the same seed everywhere, none is.

        Parameters
        ----------
        manager : torchft.Manager
            After ``start_quorum``, or the ``zero_grad`` of torchft's Optimizer.
        parallel : DistributedDataParallel, optional
            Reduces the gradients once, with the last micro-batch.
        """
        participants = manager.num_participants()
        rank = manager.participating_rank() if manager.is_participating() else None
        *others, last = self.share(manager.current_step(), rank, participants)
        for part in others:
            if parallel is None:
                yield part
            else:
                with parallel.no_sync():
                    yield part
        yield last

    def register(self, loom: Any, manager: Any) -> None:
        """Register the knobs ``micro_batch`` and ``global_batch``."""
        knob = partial(loom.knob, kind="int", low=1, fence="run", unit="samples")
        set_micro_batch = partial(setattr, self, "micro_batch")
        doc = "the most samples in one forward pass"
        knob("micro_batch", lambda: self.micro_batch, set_micro_batch, doc=doc)

        knob(
            "global_batch",
            lambda: self.size,
            lambda size: self.resize(size, manager.current_step()),
            doc="samples of a step, over all workers",
        )

    def state_dict(self) -> dict[str, int]:
        """Return the state for a joiner."""
        return {
            "size": self._size,
            "micro_batch": self._micro_batch,
            "since": self._since,
            "taken": self._taken,
            "seed": self._seed,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take samples as the worker of this state does."""
        self._size, self._micro_batch = state["size"], state["micro_batch"]
        self._since, self._taken = state["since"], state["taken"]
        self._seed = state["seed"]
        self._order.cache_clear()

    def _shuffled(self, epoch: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        return torch.randperm(self._samples, generator=generator, device="cpu")


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"need {name} >= 1, was {value}")
    return value
