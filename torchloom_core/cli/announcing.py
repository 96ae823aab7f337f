"""What a daemon prints once it is ready; that nobody can read it is no reason to end."""

import logging
import os
import sys
from typing import TextIO

_log = logging.getLogger(__name__)


def announce(*lines: str) -> None:
    """Print ``lines``; where the disk is full or the reader gone, log that instead."""
    try:
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
    except OSError as error:
        drop_output(sys.stdout)
        _log.warning("%s; standard output cannot be written: %s", lines[0], error.strerror)


def drop_output(*streams: TextIO) -> None:
    """Send what is still to be printed nowhere; Python would complain about it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream.fileno())
