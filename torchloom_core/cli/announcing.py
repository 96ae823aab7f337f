"""What a daemon prints once it is ready; that nobody can read it is no reason to end."""

import logging
import os
import sys

_log = logging.getLogger(__name__)


def announce(*lines: str) -> None:
    """Print ``lines``; where the disk is full or the reader gone, log that instead."""
    try:
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
    except OSError as error:
        drop_output()
        _log.warning("%s; standard output cannot be written: %s", lines[0], error.strerror)


def drop_output() -> None:
    """Send what is still to be printed nowhere; Python would complain about it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
