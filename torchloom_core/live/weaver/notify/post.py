"""Post JSON over HTTP, as webhooks and Slack's want it."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import msgspec

from torchloom_core.live.weaver.notify.channel import SendError, without

_ANSWER_S = 8.0
_LATER = (408, 425, 429)
"""Statuses of requests that may succeed later, though they are the client's errors."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would drop the body, and could lead anywhere."""

    def redirect_request(self, *arguments: Any, **more: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def post(url: str, body: object, headers: Mapping[str, str], secrets: tuple[str, ...]) -> str:
    """Post; return the status. SendError if it is refused, OSError if it fails for now."""
    try:
        request = urllib.request.Request(
            url, msgspec.json.encode(body), {"Content-Type": "application/json", **headers}
        )
        with _OPENER.open(request, timeout=_ANSWER_S) as answer:
            return f"HTTP status {answer.status}"
    except urllib.error.HTTPError as error:
        error.close()
        text = f"HTTP status {error.code}"
        if error.code < 500 and error.code not in _LATER:
            raise SendError(text) from None
        raise OSError(text) from None
    except (ValueError, http.client.InvalidURL) as error:
        raise SendError(without(str(error), secrets)) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise OSError(without(str(reason) or type(error).__name__, secrets)) from None
