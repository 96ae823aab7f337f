"""Suggest what a person may have meant."""

import difflib
from collections.abc import Iterable

_LISTED = 20
_ALL_BUT_EQUAL = 0.8


def mistyped(name: str, known: Iterable[str]) -> str:
    """Return the known name that ``name`` is all but equal to, in whatever case; "" if none is.

    Examples
    --------
    >>> mistyped("RESOLVD", ["resolved", "cause"]), mistyped("slot", ["resolved", "cause"])
    ('resolved', '')
    """
    close = difflib.get_close_matches(name.lower(), sorted(known), n=1, cutoff=_ALL_BUT_EQUAL)
    return next(iter(close), "")


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
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    if not names:
        return "; there are none"
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"; there are {', '.join(names[:_LISTED])}{more}"
