"""Ask a nats-server whether its streams still take what is written to them."""

import http.client
from urllib.parse import urlsplit

import msgspec

from torchloom_core.codec import UNREADABLE

_ANSWER_S = 5.0
_MOST_BYTES = 1 << 20
_FINAL = "write error"


class _Health(msgspec.Struct):
    error: str = ""


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
