"""What each bucket's codec remembers, over switches and quorums, changed by commits alone."""

import threading
from collections.abc import Hashable
from dataclasses import dataclass

from torchloom_threadlet.compression.codecs import Memory

_NOTHING = Memory()


@dataclass(frozen=True)
class Turn:
    """One reduction's place: which bucket of which step, and what is known of it so far."""

    bucket: Hashable
    step: int
    memory: Memory


class Feedback:
    """The memories of one rank.

    A bucket is known by the part of the model it belongs to, its place among the step's
    reductions, and its size. These are the same in every step, be there a compression or none, and
    however the tensors are allocated.
    """

    def __init__(self) -> None:
        self.part: Hashable = ""
        self._lock = threading.Lock()
        self._step = 0
        self._place = 0
        self._kept: dict[Hashable, Memory] = {}
        self._staged: dict[Hashable, Memory] = {}

    def take_turn(self, numbers: int) -> Turn:
        """Return the turn of the step's next reduction."""
        with self._lock:
            bucket = (self.part, self._place, numbers)
            self._place += 1
            return Turn(bucket, self._step, self._kept.get(bucket, _NOTHING))

    def stage(self, turn: Turn, memory: Memory) -> None:
        """Keep ``memory`` if the turn's step is committed; that of a step that is over is lost."""
        with self._lock:
            if turn.step == self._step and memory is not turn.memory:
                self._staged[turn.bucket] = memory

    def end_step(self, committed: bool) -> None:
        """Keep what this step has staged, or drop it; begin the next one."""
        with self._lock:
            if committed:
                self._kept |= self._staged
            self._staged = {}
            self._step += 1
            self._place = 0
