"""Print whatever the terminal's encoding has: no command fails for a character that it lacks."""

import codecs
import io
import json
import re
from typing import TextIO

_ERRORS = "torchloom.stand_ins"
_STAND_INS = {"→": "->", "←": "<-", "•": "*", "±": "+-", "…": "..."}
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def print_stand_ins(stream: TextIO) -> None:
    """Have a stream print something else for what it cannot encode, as ``->`` for an arrow."""
    codecs.register_error(_ERRORS, _stand_in)
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=_ERRORS)


def json_for(stream: TextIO, text: str) -> str:
    r"""Return JSON in characters that the stream has: ``"\u2192"`` is the same to who reads it."""
    if (getattr(stream, "encoding", None) or "utf-8").lower().startswith("utf"):
        return text
    return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _stand_in(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    known = "".join(_STAND_INS.get(char, char) for char in lacking)
    return known.encode("ascii", "backslashreplace").decode(), error.end
