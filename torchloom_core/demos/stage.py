"""Run a demo in its own folder, and end all its processes afterwards.

``torchloom demo`` runs every scenario in it.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TextIO

from torchloom_core.cli import Terminated
from torchloom_core.cli.interrupts import ENDINGS, active_endings, handled_by
from torchloom_core.demos.bandwidth.links import marks_of_links, take_down_links
from torchloom_core.demos.checkpoints.memory import free_memory
from torchloom_core.demos.folder import RUN, clear, locked
from torchloom_core.demos.marks import end_marked, is_mark, may_run, own_mark


@contextmanager
def stage(folder: Path) -> Iterator[None]:
    """Prepare a folder for a demo, and end all the demo's processes when the context ends.

    Processes left by an earlier demo that was killed are ended first. SIGTERM and SIGHUP interrupt
    the demo as Ctrl-C does, and raise Terminated. Raises StateError as :func:`locked` does.
    """
    with _terminated_by_signals(), locked(folder) as mark_file:
        _end_left_processes(mark_file)
        free_memory(folder / RUN)
        clear(folder)
        mark_file.truncate(0)
        mark_file.write(own_mark())
        mark_file.flush()
        try:
            yield
        finally:
            with handled_by(signal.SIG_IGN, signal.SIGINT, *ENDINGS):
                _end(own_mark())
                free_memory(folder / RUN)


def _end_left_processes(mark_file: TextIO) -> None:
    mark_file.seek(0)
    last = mark_file.read(100)
    if is_mark(last):
        _end(last)  # safe although its PID may be reused: this demo has the lock
    for mark in marks_of_links():
        if not may_run(mark):
            _end(mark)


def _end(mark: str) -> None:
    end_marked(mark)
    take_down_links(mark)


@contextmanager
def _terminated_by_signals() -> Iterator[None]:
    terminated = False

    def interrupt(_: int, frame: FrameType | None) -> None:
        nonlocal terminated
        terminated = True
        # asyncio may have its own handler; a background job of a shell ignores SIGINT.
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)

    with handled_by(interrupt, *active_endings()):
        try:
            yield
        except BaseException:
            if terminated:
                raise Terminated from None
            raise
