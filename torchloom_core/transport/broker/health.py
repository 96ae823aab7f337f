"""Tell whether a nats-server is well enough to go on; the embedded broker looks now and then."""

import http.client
import logging
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from torchloom_core.wire.codec import UNREADABLE

_log = logging.getLogger(__name__)

_ANSWER_S = 5.0
_MOST_BYTES = 1 << 20
_GREETING = b"INFO "
_FINAL = "write error"
_SILENCES = 3
"""How often in a row a server that hangs does not greet before it is given up."""

_ROOM_BYTES = 1 << 20
"""What the store has to have room for before a server that ran out of it is started again."""


class Health:
    """The health of one server, as it is found from one look to the next.

    Parameters
    ----------
    store : Path
        The folder of its store.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._silences = 0
        self._error = ""

    def is_lost(self, pid: int, url: str, monitor_url: str) -> bool:
        """Look, and return whether the server is to be ended and started again."""
        if _hangs(url):
            self._silences += 1
            if self._silences < _SILENCES:
                return False
            _log.warning("nats-server (pid %d) hangs: it is ended", pid)
            self._silences = 0
            return True
        self._silences = 0
        known, self._error = self._error, write_error(monitor_url)
        if self._error and not known:
            _log.warning("nats-server (pid %d) stores nothing more: %s", pid, self._error)
        return bool(self._error) and self._has_room()

    def _has_room(self) -> bool:
        probe = self._store / "room"
        try:
            probe.write_bytes(bytes(_ROOM_BYTES))
        except OSError:
            return False
        finally:
            with suppress(OSError):
                probe.unlink(missing_ok=True)
        return True


def greets(url: str) -> bool:
    """Return whether something greets a client as a nats-server does."""
    place = urlsplit(url)
    try:
        with socket.create_connection((place.hostname or "", place.port or 0), _ANSWER_S) as probe:
            return probe.recv(len(_GREETING)) == _GREETING
    except OSError:
        return False


def _hangs(url: str) -> bool:
    """Return whether a server is there and says nothing; that we cannot ask is no sign of it."""
    place = urlsplit(url)
    try:
        with socket.create_connection((place.hostname or "", place.port or 0), _ANSWER_S) as probe:
            probe.recv(len(_GREETING))
    except TimeoutError:
        return True
    except OSError:
        return False
    return False


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
