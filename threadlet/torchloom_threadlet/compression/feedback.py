"""The codecs' memories of all buckets, across switches and quorums; only commits change them."""

import threading
from collections.abc import Hashable
from dataclasses import dataclass

from torchloom_threadlet.compression.codecs import Memory

_NOTHING = Memory()


@dataclass(frozen=True)
class Turn:
    """One reduction's bucket, its step, and the bucket's memory."""

    bucket: Hashable
    step: int
    memory: Memory


class Feedback:
    """The memories of one rank.

    A bucket is identified by its part of the model, its index among the step's reductions, and its
    size. These are the same in every step, with or without compression, and however the tensors are
    allocated.
    """

    def __init__(self) -> None:
        self.part: Hashable = ""
        self._lock = threading.Lock()
        self._step = 0
        self._place = 0
        self._committed: dict[Hashable, Memory] = {}
        self._staged: dict[Hashable, Memory] = {}

    def take_turn(self, numbers: int) -> Turn:
        """Return the turn of the step's next reduction."""
        with self._lock:
            bucket = (self.part, self._place, numbers)
            self._place += 1
            return Turn(bucket, self._step, self._committed.get(bucket, _NOTHING))

    def stage(self, turn: Turn, memory: Memory) -> None:
        """Store ``memory`` for the case that the turn's step is committed; ignore a past step's."""
        with self._lock:
            if turn.step == self._step and memory is not turn.memory:
                self._staged[turn.bucket] = memory

    def end_step(self, committed: bool) -> None:
        """Keep this step's staged memories, or drop them; begin the next step."""
        with self._lock:
            if committed:
                self._committed |= self._staged
            self._staged = {}
            self._step += 1
            self._place = 0
