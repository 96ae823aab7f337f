"""Check the ports on which the Weaver's servers listen."""

import errno
import os
import socket
from collections.abc import Iterable

import psutil

from torchloom_core.cli.doctor.finding import Check, Finding, Host, kernel_numbers
from torchloom_core.config.services import ROUTE_STEP
from torchloom_core.floor.addresses import address


def ports(host: Host) -> Iterable[Finding]:
    """Bind each configured port: it is free, or one of torchLoom's own processes has it."""
    for key, at, port in _configured(host):
        fault = _bind_fault(at, port)
        if fault == errno.EADDRNOTAVAIL:
            text = f"{at} is no address of this host"
            yield Finding("port", "problem", text, f"set the host of {key} to one that is")
        elif fault == errno.EADDRINUSE and not _is_own(holder := _holder(port)):
            text = f"{at}:{port} is in use by {holder or 'a process of another user'}"
            yield Finding("port", "problem", text, f"free it, or set {key} to another")
        elif fault not in (0, errno.EADDRINUSE):
            text = f"{at}:{port}: {os.strerror(fault)}"
            yield Finding("port", "problem", text, f"set {key} to one from 1024")
        else:
            state = "in use by this program" if fault else "is free"
            yield Finding("port", "ok", f"{key} {at}:{port} {state}")


def outgoing(host: Host) -> Iterable[Finding]:
    """Compare the configured ports with those that the system gives to outgoing connections."""
    numbers = kernel_numbers("net/ipv4/ip_local_port_range")
    for key, _, port in _configured(host) if len(numbers) == 2 else ():
        if numbers[0] <= port <= numbers[1]:
            text = f"{port} may be taken by an outgoing connection"
            change = f"set {key} below {numbers[0]}"
            yield Finding("outgoing ports", "warning", text, change)


def _configured(host: Host) -> Iterable[tuple[str, str, int]]:
    """Yield the setting, address and port of each server whose port is set."""
    config = host.config
    if config is None:
        return
    listed = [("broker.port", config.broker.host, 0 if config.broker.url else config.broker.port)]
    if config.broker.peers:
        listed.append(("broker.port", config.broker.host, config.broker.port + ROUTE_STEP))
    if (own := config.lighthouse) is not None:
        listed += [("lighthouse.port", own.host, own.port)]
        listed += [("lighthouse.status_port", own.host, own.status_port)]
    listed.append(("dashboard.port", config.dashboard.host, config.dashboard.port))
    if config.metrics is not None and config.metrics.address:
        listed.append(("metrics.address", *address(config.metrics.address, "metrics.address")))
    yield from (one for one in listed if one[2])


def _bind_fault(at: str, port: int) -> int:
    """Return the number of the error of listening there; 0 if it works."""
    with socket.socket(socket.AF_INET6 if ":" in at else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((at, port))
            probe.listen(1)
        except socket.gaierror:
            return errno.EADDRNOTAVAIL
        except OSError as error:
            return error.errno or errno.EIO
    return 0


def _holder(port: int) -> str:
    """Return the command line of the process that listens on a port, as far as it is visible."""
    try:
        for link in psutil.net_connections("tcp"):
            if link.laddr and link.laddr.port == port and link.pid and not link.raddr:
                return f"pid {link.pid} ({' '.join(psutil.Process(link.pid).cmdline())[:80]})"
    except psutil.Error:
        pass
    return ""


def _is_own(holder: str) -> bool:
    return "torchloom" in holder


CHECKS: tuple[Check, ...] = (ports, outgoing)
