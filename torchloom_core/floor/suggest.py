"""Suggest the valid name that a mistyped one may stand for."""

import difflib
from collections.abc import Iterable, Sequence

_LISTED = 20
_LONGEST = 128
"""Maximum length of a shown name, that of a metric."""
ALL_BUT_EQUAL = 0.8
_NEAR = 0.6


def closest(name: str, known: Iterable[str], cutoff: float = _NEAR) -> str:
    """Return the known name most similar to ``name``; "" if none is similar.

    Examples
    --------
    >>> closest("heta", ["heat", "power"]), closest("volt", ["heat", "power"])
    ('heat', '')
    """
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=cutoff)), "")


def listed(names: Sequence[str], most: int = _LISTED) -> str:
    r"""Return names in a row, the first of them if they are many.

    Examples
    --------
    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    >>> print(listed(["a", "b\nc"]))
    a, 'b\nc'
    >>> len(listed(["a" * 5000]))
    128
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(map(_shown, names[:most]))}{more}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a clause with the known names most similar to ``name``, or with all of them.

    Examples
    --------
    >>> nearest("stragler", ["straggler", "silence"])
    '; did you mean straggler?'
    >>> nearest("x", ["straggler", "silence"])
    '; there are silence, straggler'
    >>> nearest("x", [])
    '; there are none'
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=_NEAR)
    if close:
        return f"; did you mean {' or '.join(map(_shown, close))}?"
    if not names:
        return "; there are none"
    return f"; there are {listed(names)}"


def _shown(name: str) -> str:
    """Return a name of any source without control characters, and shortened."""
    short = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}..."
    return short if short.isprintable() else repr(short)
