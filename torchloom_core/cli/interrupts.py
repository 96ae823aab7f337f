"""What long commands do where they are interrupted, at the keyboard or by a signal."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from torchloom_core.cli import Terminated
from torchloom_core.plain_text import printable

ENDINGS = (signal.SIGTERM, signal.SIGHUP)
"""Ask for an end as an interrupt at the keyboard does; SIGHUP is that of a closed terminal."""


@contextmanager
def says_if_interrupted(what: Callable[[], str]) -> Iterator[None]:
    """Say in a line ``what`` is left of the work; heed ``ENDINGS`` as an interrupt."""
    with handled_by(_terminate, *heeded()):
        try:
            yield
        except KeyboardInterrupt:
            with suppress(OSError):  # of a terminal that is closed
                sys.stderr.write(f"torchloom: interrupted; {what()}\n")
            raise


@contextmanager
def whole_or_not(path: Path) -> Iterator[None]:
    """Where what writes a folder to ``path`` is interrupted, say what is there."""
    before = _identity(path)

    def what() -> str:
        was = "is as it was" if before else "was not written"
        return f"{printable(str(path))} {was if _identity(path) == before else 'is written'}"

    with says_if_interrupted(what):
        yield


@contextmanager
def handled_by(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers, *numbers: signal.Signals
) -> Iterator[None]:
    """Let a handler have these signals meanwhile."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def heeded() -> list[signal.Signals]:
    """Return the ``ENDINGS`` that whoever started us did not have ignored, as ``nohup`` does."""
    return [number for number in ENDINGS if signal.getsignal(number) != signal.SIG_IGN]


def _identity(path: Path) -> int:
    """Return what tells a folder from another that is put in its place; 0 for none."""
    return path.stat().st_ino if path.exists() else 0


def _terminate(*_: object) -> None:
    raise Terminated
