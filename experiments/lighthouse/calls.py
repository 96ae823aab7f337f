"""A Manager's calls to any lighthouse, torchft's or torchLoom's."""

import asyncio
from typing import Any

import grpc

from torchloom_core.live.lighthouse.protocol import MESSAGES, SERVICE

LONGEST_S = 60.0
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
)


def heartbeat_bytes(replica_id: str) -> bytes:
    """Return a heartbeat as a Manager writes it."""
    return _written("LighthouseHeartbeatRequest", replica_id=replica_id)


def member_bytes(replica_id: str, *, extra: bytes = b"", **fields: Any) -> bytes:
    """Return a ``QuorumMember`` as a Manager writes it; ``extra``: fields of a newer version."""
    return _written("QuorumMember", replica_id=replica_id, **fields) + extra


def request_bytes(member: bytes) -> bytes:
    """Return the request for a quorum of a member."""
    return _written("LighthouseQuorumRequest", requester=member)


class Answer:
    """A quorum as a Manager receives it."""

    def __init__(self, data: bytes) -> None:
        response = MESSAGES["LighthouseQuorumResponse"].FromString(data)
        quorum = MESSAGES["Quorum"].FromString(response.quorum)
        self.quorum_id: int = quorum.quorum_id
        self.raw: tuple[bytes, ...] = tuple(quorum.participants)
        members = [MESSAGES["QuorumMember"].FromString(raw) for raw in self.raw]
        self.replicas: tuple[str, ...] = tuple(member.replica_id for member in members)
        self.steps: tuple[int, ...] = tuple(member.step for member in members)


class Calls:
    """A connection of its own to a lighthouse at ``host:port``."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
        self._heartbeat = self._channel.unary_unary(f"/{SERVICE}/Heartbeat")
        self._quorum = self._channel.unary_unary(f"/{SERVICE}/Quorum")

    def heartbeat(self, replica_id: str) -> Any:
        """Call, and return the call."""
        return self._heartbeat(heartbeat_bytes(replica_id), timeout=LONGEST_S)

    def request(
        self, replica_id: str, *, extra: bytes = b"", **fields: Any
    ) -> "asyncio.Task[Answer]":
        """Request a quorum, and return a task with the answer."""
        data = request_bytes(member_bytes(replica_id, extra=extra, **fields))

        async def call() -> Answer:
            return Answer(await self._quorum(data, timeout=LONGEST_S))

        return asyncio.create_task(call())

    def raw(self, method: str, data: bytes, wait_s: float = LONGEST_S) -> Any:
        """Call any method of any service with any bytes, and return the call."""
        return self._channel.unary_unary(method)(data, timeout=wait_s)

    async def close(self, grace_s: float | None = None) -> None:
        """Close the connection, as the end of a process does, or once calls had time to end."""
        await self._channel.close(grace_s)


def _written(name: str, **fields: Any) -> bytes:
    return bytes(MESSAGES[name](**fields).SerializeToString())
