"""A section's process, for ``run.py``: all that it starts ends with it, and its files are removed.

A broker, a sidecar and a checkpoint's writer have sessions of their own and may outlive it.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import NamedTuple

from torchloom_core.cli.interrupts import handled_by
from torchloom_core.demos.marks import VARIABLE, end_marked
from torchloom_core.floor.errors import StateError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MEMORY = Path("/dev/shm")
_GRACE_S = 3.0
_POLL_S = 0.1


class Ended(NamedTuple):
    """What a process printed to stdout and stderr, and what went wrong, in a line."""

    printed: str
    lines: str
    problem: str


@contextmanager
def noted_signals() -> Iterator[list[signal.Signals]]:
    """Yield a list to which SIGINT, SIGTERM and SIGHUP are added; they do nothing else meanwhile.

    One that is ignored stays so: ``nohup`` ignores SIGHUP.
    """
    signals: list[signal.Signals] = []
    heeded = [each for each in _SIGNALS if signal.getsignal(each) != signal.SIG_IGN]
    with handled_by(lambda number, _: signals.append(signal.Signals(number)), *heeded):
        yield signals


def run_to_end(
    command: Sequence[str],
    path: str,
    limit_s: float,
    signals: Sequence[signal.Signals],
    files: Path | None = None,
) -> Ended:
    """Run ``command`` until it ends, or for ``limit_s``, or until there is a signal.

    Parameters
    ----------
    path : str
        Its ``PYTHONPATH``.
    files : Path, optional
        Where its temporary folder is made, which is its working directory as well.

    Raises OSError if it cannot be started.
    """
    with (
        TemporaryDirectory(prefix="torchloom-gpu-", dir=files, ignore_cleanup_errors=True) as own,
        TemporaryFile("w+", errors="replace") as printed,
        TemporaryFile("w+", errors="replace") as lines,
    ):
        process = subprocess.Popen(
            command,
            stdout=printed,
            stderr=lines,
            cwd=own,
            env=os.environ | {"PYTHONPATH": path, "TMPDIR": own, VARIABLE: own},
            start_new_session=True,
        )
        try:
            problem = _wait(process, limit_s, signals)
        finally:
            unended = _end(process, own)
        printed.seek(0)
        lines.seek(0)
        return Ended(printed.read(), lines.read(), unended or problem)


def _wait(
    process: subprocess.Popen[bytes], limit_s: float, signals: Sequence[signal.Signals]
) -> str:
    """Return why the process failed or has to be ended; "" if all is well or there is a signal."""
    limit_at_s = time.monotonic() + limit_s
    while process.poll() is None:
        if signals:
            return ""
        if time.monotonic() > limit_at_s:
            return f"ended after {limit_s:g} s"
        time.sleep(_POLL_S)
    return f"status {process.returncode}" if process.returncode else ""


def _end(process: subprocess.Popen[bytes], mark: str) -> str:
    """Terminate the process's group; kill all that is marked and left. Return what does not end."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    try:
        end_marked(mark)
    except StateError:
        return "a process that it started could not be ended"
    process.wait()
    for slots in _MEMORY.glob(f"torchloom-{os.getuid()}-{process.pid}-*"):
        slots.unlink(missing_ok=True)  # of its checkpoints: a writer that is killed leaves them
    return ""
