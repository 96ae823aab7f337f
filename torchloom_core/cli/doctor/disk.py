"""Check the disk of the state folder: it can be written, has room, and syncs fast enough."""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from torchloom_core.cli.doctor.finding import Check, Finding, Host, Level

_LEAST_BYTES = 1 << 30
_WORKER_BYTES_S = 200
"""Sealed trajectory of a worker with 30 metrics at 1 Hz, at most; see experiments/bench."""
_DAY_S = 86_400
_SYNCS = 20
_BLOCK = bytes(4096)
_SLOW_S, _TOO_SLOW_S = 0.02, 0.2


def room(host: Host) -> Iterable[Finding]:
    """Compare the free space with a day of the expected workers' trajectory."""
    if host.config is None:
        return
    folder = _existing(Path(host.config.weaver.state_dir))
    if not os.access(folder, os.W_OK | os.X_OK):
        text = f"{folder}: this user cannot write there"
        yield Finding("state folder", "problem", text, "chown it, or set weaver.state_dir")
        return
    free = shutil.disk_usage(folder).free
    day = host.workers * _WORKER_BYTES_S * _DAY_S
    text = f"{folder}: {free / 1e9:.1f} GB are free"
    change = "set weaver.state_dir to a larger disk, or a budget (docs/operate/retention.md)"
    if free < _LEAST_BYTES:
        need = f"need {_LEAST_BYTES / 1e9:.1f} GB, was {free / 1e9:.1f}"
        yield Finding("state folder", "problem", f"{folder}: {need}", change)
    elif free < day:
        yield Finding("state folder", "warning", f"{text}, {free / day:.1f} days of record", change)
    else:
        yield Finding("state folder", "ok", f"{text}, {free / day:.0f} days of record")


def sync(host: Host) -> Iterable[Finding]:
    """Time a write that reaches the disk, as the nats-server makes them."""
    if host.config is None:
        return
    folder = _existing(Path(host.config.weaver.state_dir))
    times = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(_SYNCS):
            begun = time.perf_counter()
            file.write(_BLOCK)
            os.fsync(file.fileno())
            times.append(time.perf_counter() - begun)
    median_s = statistics.median(times)
    text = f"a write reaches the disk in {median_s * 1e3:.1f} ms"
    if median_s <= _SLOW_S:
        yield Finding("disk speed", "ok", text)
        return
    level: Level = "problem" if median_s > _TOO_SLOW_S else "warning"
    need = f"need {_SLOW_S * 1e3:g} ms, was {median_s * 1e3:.1f}: {text}"
    yield Finding("disk speed", level, need, "set weaver.state_dir to a local disk")


def _existing(path: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    path = path.absolute()
    while not path.is_dir():
        path = path.parent
    return path


CHECKS: tuple[Check, ...] = (room, sync)
