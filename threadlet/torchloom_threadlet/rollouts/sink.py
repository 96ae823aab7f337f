"""A rollout worker's end of a rollout queue: the weights and prompts, and where batches go."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec
import torch

from torchloom_core.floor.errors import RolloutError
from torchloom_core.wire.rollouts import (
    MAX_NEXT_POSITION,
    Done,
    Fetch,
    Given,
    Prompts,
    Put,
    Weights,
)
from torchloom_threadlet.loom import Loom
from torchloom_threadlet.rollouts.payload import decode_weights, encode_batch
from torchloom_threadlet.rollouts.queue_link import QueueLink, Waited

_log = logging.getLogger(__name__)


class RolloutSink:
    """Gets the newest weights and the next prompts from the queue, and puts rollouts into it.

    Parameters
    ----------
    address : str, optional
        The queue's ``host:port``, else ``TORCHLOOM_ROLLOUT_QUEUE``.
    loom : Loom, optional
        Is informed of a wait, so that it is no hang.
    timeout_s : float
        How long to wait for the first weights, for room, or for a queue that is gone, in seconds.

    Attributes
    ----------
    version : int
        The weights that this worker has; -1 before the first.

    Raises
    ------
    RolloutError
        If no address is set, or it is none.
    """

    def __init__(
        self, address: str | None = None, *, loom: Loom | None = None, timeout_s: float = 600.0
    ) -> None:
        self.version = -1
        self._link = QueueLink(address, timeout_s)
        self._loom, self._timeout_s = loom, timeout_s
        self._waited = Waited()
        self._serial = self._depth = 0
        self._seen = -1  # weights that cannot be read are not fetched again

    def newer_weights(self) -> dict[str, torch.Tensor] | None:
        """Return the newest weights, by name; None if this worker has them. Wait for the first.

        Raises
        ------
        RolloutError
            If none come within ``timeout_s``.
        """
        found: list[dict[str, torch.Tensor]] = []

        def fetch(wait_s: float) -> bool:
            is_first = self.version < 0
            request = Fetch(newer_than=self._seen, wait_s=wait_s if is_first else 0.0)
            answer, bodies = self._link.ask(request, Weights)
            if answer.version > self._seen and bodies:
                self._seen = answer.version
                try:
                    found.append(decode_weights(bodies[0]))
                except RolloutError as error:
                    _log.warning("version %d is left out: %s", answer.version, error)
                else:
                    self._know(answer.version)
            return bool(found) or not is_first

        with self._phase(), self._waited:
            self._link.until(fetch, "weights")
        return found[0] if found else None

    def positions(self, count: int) -> tuple[int, ...]:
        """Return the positions of the next prompts, for this worker alone.

        If this process ends before it has put their batch, another worker gets them.

        Raises
        ------
        RolloutError
            If there is no queue for ``timeout_s``.
        """
        given, _ = self._link.ask(Prompts(count=count), Given)
        hello = self._link.hello
        following = max((hello.next_position, *(at + 1 for at in given.positions)))
        next_position = min(following, MAX_NEXT_POSITION)
        self._link.hello = msgspec.structs.replace(hello, next_position=next_position)
        return given.positions

    def put(self, batch: Mapping[str, Any], positions: Sequence[int] = ()) -> bool:
        """Put a batch made with the present weights; wait for room. False: it was too old.

        Parameters
        ----------
        batch
            Numbers, text, bytes, tensors, and lists and dicts of these.
        positions
            The prompts that it answers.

        Raises
        ------
        RolloutError
            If there is no room within ``timeout_s``, or the queue never takes such a batch.
        """
        body = encode_batch(batch)
        outcome = ""

        def offer(wait_s: float) -> bool:
            nonlocal outcome
            self._serial += 1
            request = Put(
                serial=self._serial,
                version=self.version,
                positions=tuple(positions),
                size=len(body),
                wait_s=wait_s,
            )
            done, _ = self._link.ask(request, Done, body)
            self._depth, outcome = done.depth, done.outcome
            return outcome != "full"

        with self._phase(), self._waited:
            self._link.until(offer, "room")
        return outcome == "done"

    def metrics(self) -> dict[str, float]:
        """Return the telemetry for ``loom.step``: waiting, depth and version."""
        return {
            **self._waited.metrics(),
            "queue_depth": float(self._depth),
            "weights_version": float(self.version),
        }

    def close(self) -> None:
        """End the connection: prompts without an answer are given to others."""
        self._link.close()

    def _know(self, version: int) -> None:
        self.version = version
        self._link.hello = msgspec.structs.replace(self._link.hello, version=version)

    def _phase(self) -> AbstractContextManager[None]:
        loom, timeout_s = self._loom, self._timeout_s
        return loom.phase("rollout queue", at_most_s=timeout_s) if loom else nullcontext()
