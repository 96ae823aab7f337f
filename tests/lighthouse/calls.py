"""A Manager's calls to any lighthouse, as bytes, from the outside: torchft's, or ours."""

import asyncio
from typing import Any

import grpc

from torchloom_core.lighthouse.protocol import _CLASS, SERVICE

_LONGEST_S = 60.0


def member_bytes(replica_id: str, *, extra: bytes = b"", **fields: Any) -> bytes:
    """A ``QuorumMember`` as a Manager writes it; ``extra`` are fields of a newer version."""
    return _CLASS["QuorumMember"](replica_id=replica_id, **fields).SerializeToString() + extra


class Calls:
    """A channel of its own to a lighthouse at ``host:port``."""

    def __init__(self, target: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        self._channel = grpc.aio.insecure_channel(target, options=options)
        self._heartbeat = self._channel.unary_unary(f"/{SERVICE}/Heartbeat")
        self._quorum = self._channel.unary_unary(f"/{SERVICE}/Quorum")

    def heartbeat(self, replica_id: str) -> Any:
        data = _CLASS["LighthouseHeartbeatRequest"](replica_id=replica_id).SerializeToString()
        return self._heartbeat(data, timeout=_LONGEST_S)

    def ask(self, replica_id: str, *, extra: bytes = b"", **fields: Any) -> "asyncio.Task[Answer]":
        raw = member_bytes(replica_id, extra=extra, **fields)
        data = _CLASS["LighthouseQuorumRequest"](requester=raw).SerializeToString()

        async def call() -> Answer:
            return Answer(await self._quorum(data, timeout=_LONGEST_S))

        return asyncio.create_task(call())

    def raw(self, method: str, data: bytes) -> Any:
        return self._channel.unary_unary(method)(data, timeout=_LONGEST_S)

    async def close(self) -> None:
        await self._channel.close()


class Answer:
    """A quorum as a Manager is told it."""

    def __init__(self, data: bytes) -> None:
        response = _CLASS["LighthouseQuorumResponse"].FromString(data)
        quorum = _CLASS["Quorum"].FromString(response.quorum)
        self.quorum_id: int = quorum.quorum_id
        self.raw: list[bytes] = list(quorum.participants)
        members = [_CLASS["QuorumMember"].FromString(raw) for raw in self.raw]
        self.replicas: tuple[str, ...] = tuple(member.replica_id for member in members)
        self.steps: tuple[int, ...] = tuple(member.step for member in members)
