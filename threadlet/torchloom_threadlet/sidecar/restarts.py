"""Watch torchrun's restarts after a trainer's end.

A rank that ends before it attaches has no sidecar of its own, so the ended trainer's sidecar
watches until a rank attaches or torchrun ends.
"""

import asyncio
import contextlib
import os
import select
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from torchloom_threadlet.launch import final_error, run_by_torchrun
from torchloom_threadlet.sidecar.process import status_of

_POLL_S = 0.5
_SIDECAR = b"torchloom_threadlet.sidecar"
_RUN_ID = "TORCHELASTIC_RUN_ID"


class FailedRestart(NamedTuple):
    """A restart in which all ranks on this host ended before they attached.

    ``status``: of the rank that ended first: its exit code, or minus the signal number.
    """

    restart: int
    most: int
    status: int | None
    lived_s: float
    error: str
    gave_up: bool = False


class _Rank:
    """A rank that torchrun has restarted."""

    def __init__(self, pid: int, environment: Mapping[str, str]) -> None:
        self.pid = pid
        self.restart = int(environment.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.error_file = environment.get("TORCHELASTIC_ERROR_FILE", "")
        self.status: int | None = None
        self.ended_s: float | None = None
        self._began_s = time.monotonic()
        self._descriptor = os.pidfd_open(pid)

    def look(self) -> bool:
        """Return whether it has ended."""
        if self.ended_s is None and _has_ended(self._descriptor):
            self.status = status_of(self._descriptor, self.pid)
            self.ended_s = time.monotonic() - self._began_s
            os.close(self._descriptor)
        return self.ended_s is not None

    def has_attached(self) -> bool:
        return any(_SIDECAR in _read(child, "cmdline") for child in _children(self.pid))


class Restarts:
    """Watches the ranks that torchrun starts on this host after ``trainer`` has ended.

    One sidecar per host does: that of local rank 0.
    """

    def __init__(self, trainer: int, environment: Mapping[str, str] = os.environ) -> None:
        self._most = 0
        self._agent = 0
        self._descriptor = -1
        if not run_by_torchrun(environment) or environment.get("LOCAL_RANK") != "0":
            return
        with contextlib.suppress(ValueError):
            self._most = int(environment.get("TORCHELASTIC_MAX_RESTARTS", "0"))
        if self._most and (agent := _agent_of(trainer)):
            with contextlib.suppress(OSError, AttributeError):
                self._descriptor = os.pidfd_open(agent)
                self._agent = agent

    async def failed(self) -> AsyncIterator[FailedRestart]:
        """Yield each failed restart."""
        if not self._agent:
            return
        before = set(_children(self._agent))
        ranks: dict[int, _Rank] = {}
        last: FailedRestart | None = None
        while not _has_ended(self._descriptor):
            for pid in set(_children(self._agent)) - before - ranks.keys():
                environment = _environment(pid)
                if _RUN_ID in environment:  # else it has not yet executed the script
                    with contextlib.suppress(OSError, ValueError):
                        ranks[pid] = _Rank(pid, environment)
            if any(rank.has_attached() for rank in ranks.values()):
                return
            if ranks and all([rank.look() for rank in ranks.values()]):
                last = self._report(ranks.values())
                yield last
                before |= ranks.keys()
                ranks.clear()
            await asyncio.sleep(_POLL_S)
        if ranks:
            for rank in ranks.values():
                rank.look()
            last = self._report(ranks.values())
            yield last
        if last is not None:
            yield last._replace(gave_up=True)

    def _report(self, ranks: Iterable[_Rank]) -> FailedRestart:
        first = min(ranks, key=lambda rank: (rank.ended_s is None, rank.ended_s))
        error = next(filter(None, (final_error(rank.error_file) for rank in ranks)), "")
        lived_s = round(first.ended_s or 0.0, 1)
        return FailedRestart(first.restart, self._most, first.status, lived_s, error)


def _has_ended(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def _agent_of(pid: int) -> int:
    """Return torchrun's process: the nearest ancestor without a launcher of its own; 0 if none."""
    while pid > 1 and _RUN_ID in _environment(pid):
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return 0
    return pid if pid > 1 else 0


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    return children


def _environment(pid: int) -> dict[str, str]:
    entries = _read(pid, "environ").decode(errors="replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
