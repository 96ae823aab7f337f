"""Print text, tables and JSON."""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import msgspec
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.control import Control
from rich.segment import Segment

from torchloom_core.cli.streams import json_for
from torchloom_core.floor.plain_text import printable

_PIPE_WIDTH = 200
_STDERR = 2


def console() -> Console:
    """Return the console for standard output; a file or a pipe gets long lines, no colour."""
    out = _Console(highlight=False)
    if not out.is_terminal:
        out = _Console(highlight=False, width=_PIPE_WIDTH)
    out.push_render_hook(_Trimming())
    return out


class _Console(Console):
    """Raises BrokenPipeError, which :func:`torchloom_core.cli.main` handles."""

    def on_broken_pipe(self) -> None:
        raise


class _Trimming(RenderHook):
    """Remove trailing blanks of table rows, and control characters in text."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [one if isinstance(one, Control) else _Trimmed(one) for one in renderables]


class _Trimmed:
    def __init__(self, renderable: ConsoleRenderable) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in Segment.split_lines(console.render(self._renderable, options)):
            while line and not line[-1].text.rstrip():
                line.pop()
            yield from map(_plain, line[:-1])
            for text, style, control in line[-1:]:
                yield _plain(Segment(text.rstrip(), style, control))
            yield Segment.line()


def _plain(segment: Segment) -> Segment:
    """Return the segment without control characters in its text, which is untrusted."""
    text, style, control = segment
    return segment if control else Segment(printable(text), style)


def warn(text: str) -> None:
    """Print a warning on stderr, in one line."""
    err = Console(stderr=True, highlight=False)
    err.print(f"warning: {text}", style="yellow", markup=False, soft_wrap=True)


@contextmanager
def prints_on_stderr() -> Iterator[None]:
    """Send what plugins print to stderr, by a separate file that a plugin may close."""
    with (
        open(_STDERR, "w", buffering=1, errors="backslashreplace", closefd=False) as prints,
        redirect_stdout(prints),
    ):
        yield


def print_json(value: Any) -> None:
    """Print any message as one line of JSON; NaN becomes null."""
    sys.stdout.write(json_for(sys.stdout, msgspec.json.encode(value).decode()) + "\n")
    sys.stdout.flush()


def span(seconds: float | None) -> str:
    """Return a time span in a few characters.

    Examples
    --------
    >>> span(0.26), span(42), span(600), span(7200), span(None)
    ('0.3s', '42s', '10m', '120m', '-')
    """
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 10:
        return f"{seconds:.1f}s"
    if seconds < 120:
        return f"{seconds:.0f}s"
    if seconds < 3 * 3600:
        return f"{seconds / 60:.0f}m"
    return f"{seconds / 3600:.0f}h"
