"""The state of a rollout queue: batches, the newest weights, and the prompts that are given out."""

import heapq
from collections import OrderedDict, deque
from typing import NamedTuple

import msgspec

from torchloom_core.wire.rollouts import (
    MAX_KNOWN_VERSION,
    Batch,
    Batches,
    Done,
    Hello,
    Publish,
    Put,
    Take,
)

_MOST_CLIENTS = 4096
_MOST_NEWER = 2**32
"""Versions by which weights may be newer than the newest that the queue has heard of."""

_MOST_UNANSWERED = 65_536
"""Prompts that a client has, at most, before it answers some."""


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a queue.

    Attributes
    ----------
    batches, batch_bytes : int
        Batches that it holds, and their bytes, those that are being received included. As many
        bytes again are kept of batches that were taken, for who asks for them again.
    weights_bytes : int
        Bytes of the weights. While newer ones are received it holds two versions.
    """

    batches: int = 64
    batch_bytes: int = 1 << 30
    weights_bytes: int = 16 << 30


class _Held(NamedTuple):
    head: Batch
    body: bytes
    given: tuple[int, ...]
    """Those of the prompts that were given out for it."""


class _Client:
    """What the queue knows of a client: its newest connection, and its last requests."""

    def __init__(self) -> None:
        self.connection = 0
        self.positions: set[int] = set()
        self.put = (-1, Done())
        self.take: tuple[int, Batches, list[bytes]] = (-1, Batches(), [])


class RolloutQueue:
    """What happens to batches, weights and prompts; it has no clock and no I/O.

    Attributes
    ----------
    version : int
        The newest weights that it has, or has heard of; -1 before the first.
    weights : tuple of int and bytes
        The newest weights that it has, with their version.
    dropped_stale : int
        Batches that were dropped because their weights were too old.
    """

    def __init__(self, limits: QueueLimits) -> None:
        self.limits = limits
        self.version = -1
        self.weights: tuple[int, bytes] = (-1, b"")
        self.dropped_stale = 0
        self._held: deque[_Held] = deque()
        self._bytes = self._expected = 0
        self._max_staleness = 2**53
        self._next_position = 0
        self._returned: list[int] = []
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._taken: dict[str, int] = {}
        """Bytes that are kept of the last batches of each client, in case it asks again."""
        self._connections = 0

    @property
    def depth(self) -> int:
        """The batches in the queue."""
        return len(self._held)

    def join(self, hello: Hello) -> int:
        """Take a client's connection, and return its number."""
        self._connections += 1
        client = self._clients.setdefault(hello.client, _Client())
        self._clients.move_to_end(hello.client)
        client.connection = self._connections
        self._next_position = max(self._next_position, hello.next_position)
        self.version = max(self.version, min(hello.version, MAX_KNOWN_VERSION))
        gone = (name for name, client in self._clients.items() if not client.connection)
        if len(self._clients) > _MOST_CLIENTS and (name := next(gone, "")):
            del self._clients[name]
            self._taken.pop(name, None)
        return self._connections

    def leave(self, name: str, connection: int) -> None:
        """End a connection: the prompts that its client has not answered are given out again."""
        client = self._clients.get(name)
        if client is not None and client.connection == connection:
            client.connection = 0
            self._give_back(client)

    def give(self, name: str, count: int) -> tuple[int, ...]:
        """Return the positions of the next prompts, those that were given back first.

        None are given to a client that has too many without an answer.
        """
        client = self._clients.setdefault(name, _Client())
        if len(client.positions) + count > _MOST_UNANSWERED:
            return ()
        given = [heapq.heappop(self._returned) for _ in range(min(count, len(self._returned)))]
        new = range(self._next_position, self._next_position + count - len(given))
        self._next_position = new.stop
        positions = (*given, *new)
        client.positions.update(positions)
        return positions

    def earlier_put(self, name: str, put: Put) -> Done | None:
        """Return the answer to a batch that was put before, and is sent again."""
        client = self._clients.get(name)
        return client.put[1] if client is not None and put.serial <= client.put[0] else None

    def refusal(self, offer: Put | Publish) -> str:
        """Return why a batch, or weights, can never be taken; "" if they can."""
        if isinstance(offer, Put):
            what, most = "a batch", self.limits.batch_bytes
        else:
            what, most = "weights", self.limits.weights_bytes
            if offer.version > (newest := self.version + _MOST_NEWER):
                return f"weights: need version {newest} at most, was {offer.version}"
        return f"{what}: need at most {most} bytes, was {offer.size}" if offer.size > most else ""

    def reserve(self, size: int) -> bool:
        """Return whether there is room for a batch, and keep it free for that one."""
        self._drop_stale()
        limits = self.limits
        if self.depth + self._expected >= limits.batches or self._bytes + size > limits.batch_bytes:
            return False
        self._expected += 1
        self._bytes += size
        return True

    def release(self, size: int) -> None:
        """Free the room of a batch that did not come."""
        self._expected -= 1
        self._bytes -= size

    def put(self, name: str, put: Put, body: bytes) -> Done:
        """Take a batch for which there is room; drop it if it is too old."""
        self.release(put.size)
        client = self._clients.setdefault(name, _Client())
        if put.serial <= client.put[0]:  # it was sent on two connections
            return client.put[1]
        given = tuple({*client.positions, *self._returned}.intersection(put.positions))
        client.positions.difference_update(given)
        self._take_back(given)
        done = Done(depth=self.depth + 1, version=self.version)
        if self._is_stale(put.version):
            self._count_stale(given)
            done = Done(outcome="stale", depth=self.depth, version=self.version)
        else:
            head = Batch(client=name, version=put.version, positions=put.positions, size=len(body))
            self._held.append(_Held(head, body, given))
            self._bytes += len(body)
        client.put = (put.serial, done)
        return done

    def take(self, name: str, take: Take) -> tuple[Batches, list[bytes]] | None:
        """Return the oldest batches that are new enough, None if there is none.

        A request that is sent again gets the same batches.
        """
        client = self._clients.setdefault(name, _Client())
        serial, answer, bodies = client.take
        if take.serial == serial and answer.batches:
            return answer, bodies
        self._forget_taken(name)
        self._max_staleness = take.max_staleness
        self._drop_stale()
        if not self._held:
            return None
        taken = [self._held.popleft() for _ in range(min(take.count, self.depth))]
        self._bytes -= sum(held.head.size for held in taken)
        answer = Batches(
            batches=tuple(held.head for held in taken),
            depth=self.depth,
            dropped_stale=self.dropped_stale,
        )
        bodies = [held.body for held in taken]
        client.take = (take.serial, answer, bodies)
        self._taken[name] = sum(map(len, bodies))
        while len(self._taken) > 1 and sum(self._taken.values()) > self.limits.batch_bytes:
            self._forget_taken(next(iter(self._taken)))
        return answer, bodies

    def publish(self, version: int, body: bytes) -> None:
        """Make weights the newest, unless there are newer ones."""
        if version >= self.weights[0]:
            self.weights = (version, body)
        self.version = max(self.version, version)

    def _take_back(self, positions: tuple[int, ...]) -> None:
        """Give no prompt out again that is answered after all, over another connection."""
        if back := set(self._returned).intersection(positions):
            self._returned = [at for at in self._returned if at not in back]
            heapq.heapify(self._returned)

    def _forget_taken(self, name: str) -> None:
        """Free the last batches that a client has taken; it does not get them again."""
        self._taken.pop(name, None)
        if (client := self._clients.get(name)) is not None:
            client.take = (-1, Batches(), [])

    def _is_stale(self, version: int) -> bool:
        return self.weights[0] - version > self._max_staleness

    def _drop_stale(self) -> None:
        fresh: deque[_Held] = deque()
        for held in self._held:
            if self._is_stale(held.head.version):
                self._bytes -= held.head.size
                self._count_stale(held.given)
            else:
                fresh.append(held)
        self._held = fresh

    def _count_stale(self, positions: tuple[int, ...]) -> None:
        self.dropped_stale += 1
        self._return(positions)

    def _give_back(self, client: _Client) -> None:
        self._return(client.positions)
        client.positions = set()

    def _return(self, positions: tuple[int, ...] | set[int]) -> None:
        for position in positions:
            heapq.heappush(self._returned, position)
