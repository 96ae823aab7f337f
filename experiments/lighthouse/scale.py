"""What many groups cost a lighthouse: heartbeats, memory, and how long a quorum round takes."""

import asyncio
import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
import psutil
from torchft._torchft import ManagerServer

from experiments.lighthouse.calls import Calls, member_bytes, request_bytes
from experiments.lighthouse.groups import Arm, Lighthouse
from torchloom_core.live.lighthouse.protocol import SERVICE

ARMS = (Arm("torchft", active=False), Arm("torchLoom", active=True))
_SETTLE_S = 5.0
_MEASURED_S = 20.0
_ROUND_S = 120.0
_CONNECTIONS = 50
"""Over which requests for a quorum come: 1,000 in one process would measure that process."""


@dataclass(frozen=True)
class Load:
    """What so many groups cost one lighthouse.

    Attributes
    ----------
    cpu : float
        Share of a core for heartbeats alone.
    rss_mb : float
        Resident memory after the rounds.
    rounds_s : tuple of float
        From the first request of a round to the last answer; nothing where a round was not
        over in two minutes.
    """

    arm: str
    groups: int
    cpu: float
    rss_mb: float
    rounds_s: tuple[float, ...]


def measure(folder: Path, arm: Arm, groups: int, rounds: int, show: Callable[[str], None]) -> Load:
    """Let real Manager servers send heartbeats, then request quorums for all of them at once."""
    folder.mkdir(parents=True)
    lighthouse = Lighthouse(folder, arm)
    show(f"{arm.name}, {groups} groups: heartbeats")
    lighthouse.start()
    managers, far = _managers(lighthouse.url, groups)
    try:
        assert lighthouse.process is not None
        process = psutil.Process(lighthouse.process.pid)
        time.sleep(_SETTLE_S)
        before = process.cpu_times()
        time.sleep(_MEASURED_S)
        after = process.cpu_times()
        cpu = (after.user + after.system - before.user - before.system) / _MEASURED_S
        show(f"{arm.name}, {groups} groups: quorums")
        took = asyncio.run(_rounds(f"localhost:{lighthouse.port}", groups, rounds))
        return Load(arm.name, groups, cpu, process.memory_info().rss / 1e6, tuple(took))
    finally:
        far.close()
        managers.join()
        lighthouse.kill()


def _managers(url: str, groups: int) -> tuple[multiprocessing.Process, Connection]:
    """Start a process with a Manager's server for each group, torchft's own heartbeats."""
    near, far = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_heartbeat, args=(url, groups, near), daemon=True
    )
    process.start()
    near.close()
    assert far.recv() == groups
    return process, far


def _heartbeat(url: str, groups: int, near: Connection) -> None:
    servers = [
        ManagerServer(
            replica_id=_name(number),
            lighthouse_addr=url,
            hostname="localhost",
            bind="[::]:0",
            store_addr="localhost:1",
            world_size=1,
            heartbeat_interval=timedelta(milliseconds=100),
            connect_timeout=timedelta(seconds=60),
            quorum_retries=0,
        )
        for number in range(groups)
    ]
    near.send(len(servers))
    with suppress(EOFError):
        near.recv()
    os._exit(0)  # a thousand servers are long in shutting down


async def _rounds(target: str, groups: int, rounds: int) -> list[float]:
    connections = [Calls(target) for _ in range(min(groups, _CONNECTIONS))]
    took = []
    try:
        for step in range(rounds + 1):
            began_s = time.monotonic()
            requests = [
                connections[number % len(connections)].raw(
                    f"/{SERVICE}/Quorum", _request(_name(number), step), _ROUND_S
                )
                for number in range(groups)
            ]
            await asyncio.gather(*requests)
            took.append(time.monotonic() - began_s)
    except grpc.aio.AioRpcError:
        pass
    finally:
        for connection in connections:
            await connection.close()
    return took[1:]  # the first waits for late groups


def _name(number: int) -> str:
    return f"group-{number:04d}:0b5cdd48-3b1b-4d0e-9f44-2c7a3d1e{number:04d}"


def _request(name: str, step: int) -> bytes:
    """Return a request as long as a Manager's."""
    return request_bytes(member_bytes(name, step=step, extra=_ADDRESSES))


def _text(field: int, text: str) -> bytes:
    return bytes((field << 3 | 2, len(text))) + text.encode()


_ADDRESSES = _text(2, "http://node-0000.cluster.local:29512") + _text(3, "node-0000.cluster:29500")
