"""What long commands do where they are interrupted, at the keyboard or by SIGTERM."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torchloom_core.cli import Terminated
from torchloom_core.plain_text import printable


@contextmanager
def says_if_interrupted(what: Callable[[], str]) -> Iterator[None]:
    """Say in a line ``what`` is left of the work; heed SIGTERM as an interrupt at the keyboard."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write(f"torchloom: interrupted; {what()}\n")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def whole_or_not(path: Path) -> Iterator[None]:
    """Where what writes a folder to ``path`` is interrupted, say what is there."""
    before = _identity(path)

    def what() -> str:
        was = "is as it was" if before else "was not written"
        return f"{printable(str(path))} {was if _identity(path) == before else 'is written'}"

    with says_if_interrupted(what):
        yield


def _identity(path: Path) -> int:
    """Return what tells a folder from another that is put in its place; 0 for none."""
    return path.stat().st_ino if path.exists() else 0


def _terminate(*_: object) -> None:
    raise Terminated
