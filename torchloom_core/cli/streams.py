"""The standard streams: characters that an encoding lacks, a daemon's log, a closed pipe."""

import codecs
import io
import json
import logging
import os
import re
import sys
from typing import TextIO

_ERRORS = "torchloom.stand_ins"
_STAND_INS = {"→": "->", "←": "<-", "•": "*", "±": "+-", "…": "..."}
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_log = logging.getLogger(__name__)


def print_stand_ins(stream: TextIO) -> None:
    """Make a stream print a replacement for what it cannot encode, such as ``->`` for an arrow."""
    codecs.register_error(_ERRORS, _stand_in)
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=_ERRORS)


def json_for(stream: TextIO, text: str) -> str:
    r"""Return JSON that the stream can encode, with escapes such as ``"\u2192"`` if needed."""
    if (getattr(stream, "encoding", None) or "utf-8").lower().startswith("utf"):
        return text
    return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _stand_in(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    replaced = "".join(_STAND_INS.get(char, char) for char in lacking)
    return replaced.encode("ascii", "backslashreplace").decode(), error.end


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
