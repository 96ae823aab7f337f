"""The log of a daemon, and its line that it is ready; a failure to print does not end it."""

import logging
import os
import sys
from typing import TextIO

_log = logging.getLogger(__name__)


def log_on_stderr() -> None:
    """Log with times from level INFO on, as daemons do."""
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)-7s %(message)s",
        stream=sys.stderr,
        force=True,
    )


def announce(*lines: str) -> None:
    """Print ``lines``; log a warning if the disk is full or the pipe is closed."""
    try:
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
    except OSError as error:
        drop_output(sys.stdout)
        _log.warning("%s; standard output cannot be written: %s", lines[0], error.strerror)


def drop_output(*streams: TextIO) -> None:
    """Discard buffered output, about which Python would complain at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream.fileno())
