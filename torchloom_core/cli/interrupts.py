"""Report on stderr what a long command has saved when it is interrupted."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from torchloom_core.cli import Terminated
from torchloom_core.floor.plain_text import printable

ENDINGS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command as Ctrl-C does; SIGHUP comes from a closed terminal."""


@contextmanager
def reports_interruption(what: Callable[[], str]) -> Iterator[None]:
    """On Ctrl-C or a signal of ``ENDINGS``, print ``what`` on stderr and raise."""
    with handled_by(_terminate, *active_endings()):
        try:
            yield
        except KeyboardInterrupt:
            with suppress(OSError):  # the terminal is closed
                sys.stderr.write(f"torchloom: interrupted; {what()}\n")
            raise


@contextmanager
def reports_output(path: Path) -> Iterator[None]:
    """On an interruption, print whether the folder ``path`` was written."""
    before = _identity(path)

    def what() -> str:
        unwritten = "is unchanged" if before else "was not written"
        return f"{printable(str(path))} {unwritten if _identity(path) == before else 'is written'}"

    with reports_interruption(what):
        yield


@contextmanager
def handled_by(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers, *numbers: signal.Signals
) -> Iterator[None]:
    """Install a handler for these signals, and restore the earlier ones at the end."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def active_endings() -> list[signal.Signals]:
    """Return the ``ENDINGS`` that are not ignored, as ``nohup`` ignores SIGHUP."""
    return [number for number in ENDINGS if signal.getsignal(number) != signal.SIG_IGN]


def _identity(path: Path) -> int:
    """Return the folder's inode, which changes when it is replaced; 0 for none."""
    return path.stat().st_ino if path.exists() else 0


def _terminate(*_: object) -> None:
    raise Terminated
