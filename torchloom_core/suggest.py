"""Suggest what a person may have meant."""

import difflib
from collections.abc import Iterable, Sequence

_LISTED = 20
_LONGEST = 128
"""Characters of a name: as many as a metric's may have."""
_ALL_BUT_EQUAL = 0.8
_NEAR = 0.6


def mistyped(name: str, known: Iterable[str]) -> str:
    """Return the known name that ``name`` is all but equal to, in whatever case; "" if none is.

    Examples
    --------
    >>> mistyped("RESOLVD", ["resolved", "cause"]), mistyped("slot", ["resolved", "cause"])
    ('resolved', '')
    """
    close = difflib.get_close_matches(name.lower(), sorted(known), n=1, cutoff=_ALL_BUT_EQUAL)
    return next(iter(close), "")


def closest(name: str, known: Iterable[str]) -> str:
    """Return the known name nearest to ``name``; "" if none is near.

    Examples
    --------
    >>> closest("heta", ["heat", "power"]), closest("volt", ["heat", "power"])
    ('heat', '')
    """
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=_NEAR)), "")


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
    """Return a clause that offers the known names nearest to ``name``, or lists what there is.

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
    """Return a name that anyone may have written as what stays in its line, and is short."""
    short = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}..."
    return short if short.isprintable() else repr(short)
