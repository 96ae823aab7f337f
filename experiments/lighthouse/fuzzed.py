"""Calls that no Manager makes: bytes of all kinds to methods of all kinds."""

import random
from collections.abc import Iterator

from experiments.lighthouse.calls import heartbeat_bytes, member_bytes, request_bytes
from torchloom_core.floor.errors import MessageError
from torchloom_core.live.lighthouse.protocol import SERVICE, decode_request

_METHODS = (f"/{SERVICE}/Heartbeat", f"/{SERVICE}/Heartbeat", f"/{SERVICE}/Quorum", "/x.Y/Z")
_LONGEST = 200


def messages(rng: random.Random, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield a method and bytes for it, ``count`` times; never a whole request for a quorum."""
    for _ in range(count):
        method = rng.choice(_METHODS)
        data = _bytes(rng)
        yield method, b"" if method.endswith("Quorum") and _is_whole(data) else data


def _bytes(rng: random.Random) -> bytes:
    kind = rng.randrange(4)
    if kind == 0:
        return rng.randbytes(rng.randrange(_LONGEST))
    name = "".join(chr(rng.randrange(1, 0x3000)) for _ in range(rng.randrange(4)))
    whole = heartbeat_bytes(name)
    if kind == 1:
        member = member_bytes(name, step=rng.randrange(-(2**62), 2**62))
        whole = request_bytes(_damaged(rng, member))
    return whole if kind == 2 else _damaged(rng, whole)


def _damaged(rng: random.Random, data: bytes) -> bytes:
    if not data:
        return rng.randbytes(3)
    at = rng.randrange(len(data))
    match rng.randrange(3):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + rng.randbytes(1) + data[at + 1 :]
        case _:
            return data[:at] + rng.randbytes(rng.randrange(1, 9)) + data[at:]


def _is_whole(data: bytes) -> bool:
    """Return whether this would wait for a quorum, as a member would."""
    try:
        decode_request(data)
    except MessageError:
        return False
    return True
