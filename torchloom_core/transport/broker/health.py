"""Tell whether a nats-server is well enough to go on; the embedded broker looks now and then.

Slow is not hung: on a busy machine a server may need many seconds to greet a client. It counts as
hung only after two minutes in which it greeted nobody, sent nobody a byte and used no processor
time, or after ten in which it did use processor time and still served nobody. Looks are counted,
not time, so that a pause of this process, or of the whole machine, does not count.
"""

import http.client
import logging
import socket
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
import psutil

from torchloom_core.files import has_room
from torchloom_core.plain_text import RateLimitedLog
from torchloom_core.wire.codec import UNREADABLE

_log = logging.getLogger(__name__)

GREETING = b"INFO "
"""How a nats-server greets a client."""

_ANSWER_S = 5.0
"""How long a look waits for a greeting."""

_MOST_BYTES = 1 << 20
_FINAL = "write error"

_LOOKS_IDLE = 12
"""Looks in a row, of 10 s each, at which a server served nobody and used no processor time: the
scheduler of a machine under any load gives it some."""

_LOOKS_UNSERVED = 60
"""The same of one that uses processor time."""


class _Work(NamedTuple):
    """What a process has done so far: bytes written, to clients say, and processor time used.

    ``waits`` says that it waits for the disk, which a restart would not change.
    """

    written_bytes: int = 0
    cpu_s: float = 0.0
    waits: bool = False


class Health:
    """The health of one server, as it is found from one look to the next.

    Parameters
    ----------
    store : Path
        The folder of its store: with room in it, a server that had none is started again.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._pid = 0
        self._work = _Work()
        self._unserved = self._idle = 0
        self._error = ""
        self._limited_log = RateLimitedLog(_log)

    def is_lost(self, pid: int, url: str, monitor_url: str) -> bool:
        """Look, and return whether the server is to be ended and started again."""
        if self.is_hung(pid, url):
            return True
        if self._unserved:
            return False
        known, self._error = self._error, write_error(monitor_url)
        if self._error and not known:
            _log.warning("nats-server (pid %d) stores nothing more: %s", pid, self._error)
        return bool(self._error) and has_room(self._store)

    def is_hung(self, pid: int, url: str) -> bool:
        """Look whether the server serves anybody, and return whether it has not for too long."""
        silent = greeting(url) is None
        before, self._work = self._work, _work_of(pid)
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
            "nats-server (pid %d) hangs and is ended: it served nobody at %d looks in a row",
            pid,
            self._unserved,
        )
        self._pid = 0
        return True


def greeting(url: str) -> bytes | None:
    """Return how a client is greeted: b"" where nobody listens, None where nothing is said."""
    place = urlsplit(url)
    try:
        with socket.create_connection((place.hostname or "", place.port or 0), _ANSWER_S) as probe:
            return probe.recv(len(GREETING))
    except TimeoutError:
        return None
    except OSError:
        return b""


def _work_of(pid: int) -> _Work:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            waits = process.status() == psutil.STATUS_DISK_SLEEP
            # Not every platform tells it; sockets count on Linux.
            written = process.io_counters().write_chars if hasattr(process, "io_counters") else 0
        return _Work(written, times.user + times.system, waits)
    except (psutil.Error, OSError):
        return _Work()


def write_error(monitor_url: str) -> str:
    """Return why a stream takes nothing until the server is started again; "" if all do.

    A stream on which one write has failed, on a full disk say, refuses all that come after, also
    once there is room; whoever publishes to it gets no answer.
    """
    place = urlsplit(monitor_url)
    asking = http.client.HTTPConnection(place.hostname or "", place.port, timeout=_ANSWER_S)
    try:
        asking.request("GET", "/healthz")
        said = msgspec.json.decode(asking.getresponse().read(_MOST_BYTES), type=_Health).error
    except (OSError, http.client.HTTPException, *UNREADABLE):
        return ""  # it is dead, or hangs: that is another matter
    finally:
        asking.close()
    return said if _FINAL in said else ""


class _Health(msgspec.Struct):
    error: str = ""
