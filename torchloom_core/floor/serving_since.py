"""Ask a lighthouse since when it serves, over plain HTTP; relays and Weavers do."""

import asyncio
import ssl

SINCE = "torchloom-since"
"""Header of ``/health``: when this lighthouse was declared the run's, or else began to serve, ns
since the Unix epoch."""

_ANSWER_S = 1.5
_LONGEST_ANSWER = 4096

Address = tuple[str, int]


async def since_ns(place: Address, tls: ssl.SSLContext | None = None) -> int | None:
    """Return when the lighthouse there began to serve, 0 if it does not say; None: no answer.

    Raises ssl.SSLError where TLS fails.
    """
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(*place, ssl=tls)
            try:
                writer.write(
                    b"GET /health HTTP/1.1\r\nhost: lighthouse\r\nconnection: close\r\n\r\n"
                )
                head = (await reader.read(_LONGEST_ANSWER)).decode("latin-1").lower()
            finally:
                writer.close()
        status, *lines = head.split("\r\n")
        if " 200 " in f"{status} ":
            headers = dict(line.split(": ", 1) for line in lines if ": " in line)
            return int(headers.get(SINCE, "0"))
    except ssl.SSLError:
        raise
    except (OSError, TimeoutError, ValueError):
        pass
    return None
