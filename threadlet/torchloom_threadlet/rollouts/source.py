"""The trainer's end of a rollout queue: batches to learn from, and the weights they led to."""

import logging
from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import msgspec
import torch

from torchloom_core.floor.errors import RolloutError
from torchloom_core.wire.rollouts import MAX_NEXT_POSITION, MAX_TAKEN, Batches, Done, Publish, Take
from torchloom_threadlet.loom import Loom
from torchloom_threadlet.rollouts.payload import decode_batch, encode_weights
from torchloom_threadlet.rollouts.queue_link import QueueLink, Waited

_log = logging.getLogger(__name__)


class Rollout(NamedTuple):
    """A batch of a rollout worker.

    Attributes
    ----------
    batch : dict
        What the worker put.
    version : int
        The weights that made it.
    positions : tuple of int
        The prompts that it answers.
    """

    batch: dict[str, Any]
    version: int
    positions: tuple[int, ...]


class RolloutSource:
    """Takes rollouts from the queue, and publishes weights.

    Parameters
    ----------
    address : str, optional
        The queue's ``host:port``, else ``TORCHLOOM_ROLLOUT_QUEUE``.
    loom : Loom, optional
        Registers the knobs ``max_staleness`` and, if it is given, ``rollouts_per_step``.
    rollouts_per_step : int, optional
        How many batches :meth:`take` returns, one if not given.
    max_staleness : int
        How many versions older than the newest weights a batch may be; others are dropped.
    timeout_s : float
        How long to wait for batches, or for a queue that is gone, in seconds.

    Attributes
    ----------
    version : int
        The newest published weights; -1 before the first.

    Raises
    ------
    RolloutError
        If no address is set, or it is none, or a number is out of its range.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        loom: Loom | None = None,
        rollouts_per_step: int | None = None,
        max_staleness: int = 4,
        timeout_s: float = 600.0,
    ) -> None:
        count = 1 if rollouts_per_step is None else rollouts_per_step
        for name, value, low in (
            ("rollouts_per_step", count, 1),
            ("max_staleness", max_staleness, 0),
        ):
            if type(value) is not int or value < low:
                raise RolloutError(f"{name}: need an integer >= {low}, was {value!r:.60}")
        self.version = -1
        self._rollouts_per_step, self._max_staleness = count, max_staleness
        self._link = QueueLink(address, timeout_s)
        self._link.on_connect = self._meet
        self._loom, self._timeout_s = loom, timeout_s
        self._waited = Waited()
        self._taken: deque[Rollout] = deque()
        self._serial = self._next_position = 0
        self._depth = self._dropped_stale = self._rollouts = 0
        self._weights = b""
        if loom is not None:
            self._register(loom, is_count_free=rollouts_per_step is not None)

    def take(self) -> list[Rollout]:
        """Return the next ``rollouts_per_step`` batches, oldest first; wait for them.

        Raises
        ------
        RolloutError
            If they do not come within ``timeout_s``.
        """
        count, loom = self._rollouts_per_step, self._loom
        phase = loom.phase("rollouts", at_most_s=self._timeout_s) if loom else nullcontext()
        with phase, self._waited:
            while len(self._taken) < count:
                self._link.until(lambda wait_s: self._take(count, wait_s), "rollouts")
        self._rollouts += count
        return [self._taken.popleft() for _ in range(count)]

    def publish(self, weights: Mapping[str, torch.Tensor]) -> int:
        """Make weights the newest for all rollout workers, and return their version.

        They are copied, and kept for a queue that is started anew. Call it on one rank.

        Raises
        ------
        RolloutError
            If there is no queue for ``timeout_s``, the weights are too large for it, or they are
            not dense tensors by name.
        """
        self._weights = encode_weights(weights)
        while True:
            version = self.version + 1
            publish = Publish(version=version, size=len(self._weights))
            done, _ = self._link.ask(publish, Done, self._weights)
            self._know(done.version)
            if self.version == version:  # else an earlier trainer has published newer ones
                return version

    def metrics(self) -> dict[str, float]:
        """Return the telemetry for ``loom.step``: waiting, depth, batches and version."""
        return {
            **self._waited.metrics(),
            "queue_depth": float(self._depth),
            "rollouts_total": float(self._rollouts),
            "dropped_stale_total": float(self._dropped_stale),
            "weights_version": float(self.version),
        }

    def close(self) -> None:
        """End the connection."""
        self._link.close()

    def _take(self, count: int, wait_s: float) -> bool:
        """Take what there is; return whether that was something."""
        self._serial += 1
        answer, bodies = self._link.ask(
            Take(
                serial=self._serial,
                count=count - len(self._taken),
                max_staleness=self._max_staleness,
                wait_s=wait_s,
            ),
            Batches,
        )
        self._depth, self._dropped_stale = answer.depth, answer.dropped_stale
        for head, body in zip(answer.batches, bodies, strict=True):
            try:
                batch = decode_batch(body)
            except RolloutError as error:
                _log.warning("%s: left out: %s", head.client, error)
                continue
            self._taken.append(Rollout(batch, head.version, head.positions))
            self._next_position = max((self._next_position, *(at + 1 for at in head.positions)))
        next_position = min(self._next_position, MAX_NEXT_POSITION)
        self._link.hello = msgspec.structs.replace(self._link.hello, next_position=next_position)
        return bool(answer.batches)

    def _meet(self, done: Done) -> None:
        """Give a queue that was started anew the weights."""
        if self._weights and done.version < self.version:
            self._link.publish(
                Publish(version=self.version, size=len(self._weights)), self._weights
            )
        self._know(done.version)

    def _know(self, version: int) -> None:
        """Continue the numbers of an earlier trainer."""
        self.version = max(self.version, version)
        self._link.hello = msgspec.structs.replace(self._link.hello, version=self.version)

    def _register(self, loom: Loom, *, is_count_free: bool) -> None:
        loom.knob(
            "max_staleness",
            lambda: self._max_staleness,
            lambda value: setattr(self, "_max_staleness", value),
            kind="int",
            low=0,
            high=1_000_000,
            unit="versions",
            doc="Older rollouts are dropped.",
        )
        if is_count_free:
            loom.knob(
                "rollouts_per_step",
                lambda: self._rollouts_per_step,
                lambda value: setattr(self, "_rollouts_per_step", value),
                kind="int",
                low=1,
                high=MAX_TAKEN,
                doc="Batches of rollouts that a step learns from.",
            )
