"""Decide whether a nats-server hangs; the embedded broker checks it periodically.

On a busy machine a slow server may need many seconds to greet a client. It counts as hung only
after two minutes without a greeting, without a byte sent and without CPU time, or after ten
minutes with CPU time but without serving a client. Checks are counted, not time, so that a pause
of this process, or of the whole machine, does not count.
"""

import http.client
import logging
import socket
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
import psutil

from torchloom_core.floor.files import has_room
from torchloom_core.floor.plain_text import RateLimitedLog
from torchloom_core.wire.codec import UNREADABLE

_log = logging.getLogger(__name__)

GREETING = b"INFO "
"""The first bytes that a nats-server sends to a client."""

_ANSWER_S = 5.0
"""How long a check waits for a greeting."""

_MOST_BYTES = 1 << 20
_FINAL = "write error"

_LOOKS_IDLE = 12
"""Checks in a row, one per 10 s, at which a server served no client and used no CPU time: even on
a loaded machine the scheduler gives it some."""

_LOOKS_UNSERVED = 60
"""The same for a server that uses CPU time."""


class _Work(NamedTuple):
    """Bytes a process has written, its CPU time, and whether it waits for the disk."""

    written_bytes: int = 0
    cpu_s: float = 0.0
    waits: bool = False


class Health:
    """The health of one server with this ``store``, from one check to the next."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._pid = 0
        self._work = _Work()
        self._unserved = self._idle = 0
        self._error = ""
        self._limited_log = RateLimitedLog(_log)

    def is_lost(self, pid: int, url: str, monitor_url: str) -> bool:
        """Check, and return whether to restart the server."""
        if self.is_hung(pid, url):
            return True
        if self._unserved:
            return False
        error_before, self._error = self._error, write_error(monitor_url)
        if self._error and not error_before:
            _log.warning("nats-server (pid %d) refuses writes: %s", pid, self._error)
        return bool(self._error) and has_room(self._store)

    def is_hung(self, pid: int, url: str) -> bool:
        """Check, and return whether the server has served no client for too long."""
        silent = greeting(url) is None
        before, self._work = self._work, _work(pid)
        if pid != self._pid or not silent or self._work.written_bytes > before.written_bytes:
            self._pid, self._unserved, self._idle = pid, 0, 0
        if not silent:
            return False
        self._unserved += 1
        works = self._work.waits or self._work.cpu_s > before.cpu_s
        self._idle = 0 if works else self._idle + 1
        self._limited_log.add(
            "", f"nats-server (pid {pid}) is slow: no greeting in {_ANSWER_S:g} s"
        )
        if self._idle < _LOOKS_IDLE and self._unserved < _LOOKS_UNSERVED:
            return False
        _log.warning(
            "nats-server (pid %d) hangs and is killed: it served no client at %d checks in a row",
            pid,
            self._unserved,
        )
        self._pid = 0
        return True


def greeting(url: str) -> bytes | None:
    """Return the greeting: b"" if no server listens, None if it sends nothing."""
    place = urlsplit(url)
    try:
        with socket.create_connection((place.hostname or "", place.port or 0), _ANSWER_S) as probe:
            return probe.recv(len(GREETING))
    except TimeoutError:
        return None
    except OSError:
        return b""


def _work(pid: int) -> _Work:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            waits = process.status() == psutil.STATUS_DISK_SLEEP
            # Not available on every platform; on Linux it includes sockets.
            written = process.io_counters().write_chars if hasattr(process, "io_counters") else 0
        return _Work(written, times.user + times.system, waits)
    except (psutil.Error, OSError):
        return _Work()


def write_error(monitor_url: str) -> str:
    """Return why a stream refuses writes until a restart of the server; "" if none does.

    After one failed write, as on a full disk, a stream refuses all later ones, also once there is
    space; its publishers get no ack.
    """
    error = _ask(monitor_url, "/healthz").error
    return error if _FINAL in error else ""


def has_leader(monitor_url: str) -> bool:
    """Return whether a server of a cluster knows a leader, which takes most of its servers."""
    return bool(_ask(monitor_url, "/jsz").meta_cluster.leader)


class _MetaCluster(msgspec.Struct, frozen=True):
    leader: str = ""


class _Answer(msgspec.Struct, frozen=True):
    """What is needed of the answers."""

    error: str = ""
    meta_cluster: _MetaCluster = _MetaCluster()


def _ask(monitor_url: str, path: str) -> _Answer:
    """Return the answer; an empty one if the server has ended, or hangs: handled elsewhere."""
    place = urlsplit(monitor_url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=_ANSWER_S)
    try:
        connection.request("GET", path)
        return msgspec.json.decode(connection.getresponse().read(_MOST_BYTES), type=_Answer)
    except (OSError, http.client.HTTPException, *UNREADABLE):
        return _Answer()
    finally:
        connection.close()
