"""Print replacements for characters that the terminal's encoding lacks."""

import codecs
import io
import json
import re
from typing import TextIO

_ERRORS = "torchloom.stand_ins"
_STAND_INS = {"→": "->", "←": "<-", "•": "*", "±": "+-", "…": "..."}
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


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
