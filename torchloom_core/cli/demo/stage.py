"""Where a demo plays: in a folder of its own, and nothing that it started outlives it.

``torchloom demo`` plays every scenario on it.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TextIO

from torchloom_core.cli import Terminated
from torchloom_core.cli.demo.bandwidth.links import marks_of_links, take_down_links
from torchloom_core.cli.demo.folder import clear, held
from torchloom_core.cli.demo.marks import end_marked, is_mark, may_play, own_mark
from torchloom_core.cli.interrupts import ENDINGS, handled_by, heeded


@contextmanager
def stage(folder: Path) -> Iterator[None]:
    """Make room for a demo in a folder, and end with it whatever it started.

    What an earlier one left there, that was killed, is ended first. SIGTERM, and the end of the
    terminal, interrupt it as Ctrl-C does.

    Raises
    ------
    StateError
        If the folder holds anything but an earlier demo, cannot be written, or another demo plays
        there.
    Terminated
        If it was ended by SIGTERM or the end of the terminal.
    """
    with _terminable(), held(folder) as kept:
        _end_what_was_left(kept)
        clear(folder)
        kept.truncate(0)
        kept.write(own_mark())
        kept.flush()
        try:
            yield
        finally:
            with _undisturbed():
                _end(own_mark())


def _end_what_was_left(kept: TextIO) -> None:
    kept.seek(0)
    last = kept.read(100)
    if is_mark(last):
        _end(last)  # whoever has its pid now: nobody else holds the folder
    for mark in marks_of_links():
        if not may_play(mark):
            _end(mark)


def _end(mark: str) -> None:
    end_marked(mark)
    take_down_links(mark)


@contextmanager
def _terminable() -> Iterator[None]:
    asked = False

    def interrupt(_: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        # That of asyncio where it runs; a shell's job in the background ignores Ctrl-C.
        heed = signal.getsignal(signal.SIGINT)
        (heed if callable(heed) else signal.default_int_handler)(signal.SIGINT, frame)

    with handled_by(interrupt, *heeded()):
        try:
            yield
        except BaseException:
            if asked:
                raise Terminated from None
            raise


@contextmanager
def _undisturbed() -> Iterator[None]:
    with handled_by(signal.SIG_IGN, signal.SIGINT, *ENDINGS):
        yield
