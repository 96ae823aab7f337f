"""Turn msgspec's errors, which show types and patterns, into plain sentences."""

import re

from torchloom_core.wire.limits import KNOB_NAME, NAME

_PATTERNS = {
    NAME: "a name of at most 64 letters, digits, - and _",
    KNOB_NAME: "a name of letters, digits, - and _, and dots between them",
}
_LENGTH = re.compile(r"Expected `str` of length (<=|>=) (\d+)")
_PATHS = re.compile(r"`\$([^`]*)` - at `\$([^`]*)`")
_PATTERN = "Expected `str` matching regex "


def one_place(text: str) -> str:
    """Return an error with one path where msgspec gives two, that of an action in its message last.

    Examples
    --------
    >>> one_place("Expected `str`, got `int` - at `$.group` - at `$.action`")
    'Expected `str`, got `int` - at `$.action.group`'
    """
    return _PATHS.sub(r"`$\2\1`", text)


def in_words(error: Exception) -> str:
    """Return the rule that a text breaks, and where; other errors are returned unchanged.

    Examples
    --------
    >>> in_words(ValueError("Expected `str` of length <= 2000 - at `$.text`"))
    'need at most 2000 characters in text'
    >>> in_words(ValueError(f"{_PATTERN}{NAME!r} - at `key` in `$.action.hosts`"))
    'need a name of at most 64 letters, digits, - and _ in action.hosts'
    """
    expected, _, where = one_place(str(error)).partition(" - at ")
    place = where.replace("`key` in ", "").strip("`").removeprefix("$").removeprefix(".")
    at = f" in {place}" if place else ""
    if length := _LENGTH.fullmatch(expected):
        most = "at most" if length[1] == "<=" else "at least"
        return f"need {most} {length[2]} characters{at}"
    for pattern, words in _PATTERNS.items():
        if expected == f"{_PATTERN}{pattern!r}":
            return f"need {words}{at}"
    return one_place(str(error))
