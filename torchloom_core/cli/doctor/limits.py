"""Check the limits of the system: open files, connections that wait, ports, memory."""

import resource
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from torchloom_core.cli.doctor.finding import Check, Finding, Host, kernel_numbers

_BESIDE_WORKERS = 1024
"""Files and connections of the servers that are not workers'."""
_TRAINER_FILES = 4096
_FEW_PORTS = 10_000
_WHOLE_HERD = 4096
_BASE_BYTES = 500 << 20
_WORKER_BYTES = 200_000
"""What a worker takes in nats-server and Weaver; see experiments/many_workers."""
_CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60


def open_files(host: Host) -> Iterable[Finding]:
    """Compare the limit of open files with the expected workers."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = _BESIDE_WORKERS + host.workers if host.config else _TRAINER_FILES
    if 0 <= most < need:
        text = f"need a hard limit of {need} for {host.workers} workers, was {most}"
        change = f"ulimit -Hn {need}, or LimitNOFILE={need} in the systemd unit"
        yield Finding("open files", "problem" if host.config else "warning", text, change)
    else:
        yield Finding("open files", "ok", f"hard limit {most if most >= 0 else 'none'}")


def waiting_connections(host: Host) -> Iterable[Finding]:
    """Compare the queue of a listening socket with the workers that may connect at once."""
    if host.config is None or not (numbers := kernel_numbers("net/core/somaxconn")):
        return
    found = numbers[0]
    need = min(host.workers, _WHOLE_HERD)
    if found < need:
        text = f"need net.core.somaxconn >= {need}, was {found}: connections of a herd are lost"
        change = f"sysctl -w net.core.somaxconn={need}"
        yield Finding("waiting connections", "warning", text, change)
    else:
        yield Finding("waiting connections", "ok", f"net.core.somaxconn {found}")


def ephemeral_ports(host: Host) -> Iterable[Finding]:
    """Count the ports for outgoing connections, of which collectives use one a peer."""
    numbers = kernel_numbers("net/ipv4/ip_local_port_range")
    if len(numbers) != 2:
        return
    count = numbers[1] - numbers[0] + 1
    if count < _FEW_PORTS:
        text = f"need {_FEW_PORTS} ephemeral ports, was {count}"
        change = "sysctl -w net.ipv4.ip_local_port_range='32768 60999'"
        yield Finding("ephemeral ports", "warning", text, change)
    else:
        yield Finding("ephemeral ports", "ok", str(count))


def memory(host: Host) -> Iterable[Finding]:
    """Compare the container's memory limit with what the expected workers need."""
    limit = min(_limits_bytes(), default=_UNLIMITED)
    if limit >= _UNLIMITED:
        yield Finding("memory limit", "ok", "none")
        return
    need = _BASE_BYTES + host.workers * _WORKER_BYTES * (host.config is not None)
    text = f"{limit / 1e6:.0f} MB"
    if limit < need:
        need_text = f"need {need / 1e6:.0f} MB for {host.workers} workers, was {text}"
        change = "raise the container's memory limit"
        yield Finding("memory limit", "warning", need_text, change)
    else:
        yield Finding("memory limit", "ok", text)


def _limits_bytes() -> Iterable[int]:
    """Yield the memory limits of this process's cgroups, of version 1 and 2, and those above."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, own = line.split(":", 2)
        root, name = _CGROUPS, "memory.max"
        if "memory" in controllers.split(","):
            root, name = _CGROUPS / "memory", "memory.limit_in_bytes"
        elif controllers:
            continue
        folder = root / own.removeprefix("/")
        for group in (folder, *folder.parents):
            with suppress(OSError, ValueError):  # "max": none; not mounted here
                yield int((group / name).read_text())


CHECKS: tuple[Check, ...] = (open_files, waiting_connections, ephemeral_ports, memory)
