"""See what becomes of torchrun's restarts after a trainer's death.

A rank that ends before it attaches has no sidecar of its own, so that of the dead trainer goes on
looking, until a rank attaches or torchrun ends.
"""

import asyncio
import contextlib
import os
import select
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from torchloom_threadlet.early_end import said_by
from torchloom_threadlet.launch import run_by_torchrun
from torchloom_threadlet.sidecar.exit_status import status_of

_POLL_S = 0.5
_SIDECAR = b"torchloom_threadlet.sidecar"
_RUN_ID = "TORCHELASTIC_RUN_ID"


class InVain(NamedTuple):
    """A restart of which all ranks on this host ended, and none had attached.

    Attributes
    ----------
    restart, most : int
        Which of at most how many.
    status : int, optional
        Of the rank that ended first: its exit code, or minus the signal number.
    lived_s : float
        How long it lived, seconds.
    error : str
        What it died of, where that is known.
    gave_up : bool
        Whether torchrun has ended since.
    """

    restart: int
    most: int
    status: int | None
    lived_s: float
    error: str
    gave_up: bool = False

    def fields(self) -> dict[str, int | float | str | bool | None]:
        """Return them as a note has them."""
        return self._asdict()


class _Rank:
    """A rank that torchrun has started again."""

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
    """Looks at what torchrun starts on this host after the death of ``trainer``.

    One sidecar a host does: that of the local rank 0.
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

    async def in_vain(self) -> AsyncIterator[InVain]:
        """Yield each restart that was in vain."""
        if not self._agent:
            return
        before = set(_children(self._agent))
        ranks: dict[int, _Rank] = {}
        last: InVain | None = None
        while not _has_ended(self._descriptor):
            for pid in set(_children(self._agent)) - before - ranks.keys():
                environment = _environment(pid)
                if _RUN_ID in environment:  # else it is not yet what it is about to be
                    with contextlib.suppress(OSError, ValueError):
                        ranks[pid] = _Rank(pid, environment)
            if any(rank.has_attached() for rank in ranks.values()):
                return
            if ranks and all([rank.look() for rank in ranks.values()]):
                last = self._told(ranks.values())
                yield last
                before |= ranks.keys()
                ranks.clear()
            await asyncio.sleep(_POLL_S)
        if ranks:
            for rank in ranks.values():
                rank.look()
            last = self._told(ranks.values())
            yield last
        if last is not None:
            yield last._replace(gave_up=True)

    def _told(self, ranks: Iterable[_Rank]) -> InVain:
        first = min(ranks, key=lambda rank: (rank.ended_s is None, rank.ended_s))
        said = next(filter(None, (said_by(rank.error_file) for rank in ranks)), "")
        lived_s = round(first.ended_s or 0.0, 1)
        return InVain(first.restart, self._most, first.status, lived_s, said)


def _has_ended(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def _agent_of(pid: int) -> int:
    """Return torchrun's process: the nearest above one that has no launcher itself; 0 if none."""
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
