"""A free port for a server that is later restarted on the same port."""

import random
import socket
from contextlib import suppress
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_START = 32_768
_LOWEST, _TRIES = 10_240, 50


def lasting_port(host: str) -> int:
    """Return a port of ``host`` that is free now and stays free while its server restarts.

    It lies below the ports that the system gives to outgoing connections (as ``port 0`` does):
    any program's connection could take such a port between the end of a server and its restart.
    Where no lower port is free, it is one of those.
    """
    start = _USUAL_START
    with suppress(OSError, ValueError, IndexError):
        start = int(_RANGE.read_text().split()[0])
    choices = range(_LOWEST, max(start, _LOWEST + 1))
    drawn = random.SystemRandom().sample(choices, min(_TRIES, len(choices)))
    return next((port for port in drawn if is_free(host, port)), 0) or _any_port(host)


def is_free(host: str, port: int) -> bool:
    """Return whether a server can listen on ``port`` of ``host``."""
    with suppress(OSError), _probe(host) as probe:
        probe.bind((host, port))
        probe.listen(1)
        return True
    return False


def _any_port(host: str) -> int:
    """Return a port that the system chooses; 0 where ``host`` is no address of this machine."""
    with suppress(OSError), _probe(host) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
    return 0


def _probe(host: str) -> socket.socket:
    probe = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return probe
