"""Print for people and for machines."""

import math
import sys
from typing import Any

import msgspec
from rich.console import Console

_PIPE_WIDTH = 200


def console() -> Console:
    """Return where people read; a file or a pipe gets long lines and no colour."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)


def print_json(value: Any) -> None:
    """Print any message as one line of JSON; NaN becomes null."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
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
