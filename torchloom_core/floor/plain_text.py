"""A rate-limited log, and text without control characters; Weaver and Threadlet use both."""

import logging
import re
import time
from collections.abc import Callable

_EVERY_NS = 60_000_000_000
_MOST_KEYS = 64
_MOST_CHARACTERS = 300


class RateLimitedLog:
    """Counts warnings and logs one per minute and key, for at most 64 keys.

    ``count`` is that of all warnings so far, logged or not.
    """

    def __init__(self, log: logging.Logger, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._log = log
        self._now_ns = now_ns
        self._again_ns: dict[str, int] = {}
        self.count = 0

    def add(self, key: str, text: str) -> None:
        """Count a warning, and log it as one line unless its key was logged recently."""
        self.count += 1
        now_ns = self._now_ns()
        if now_ns < self._again_ns.get(key, now_ns):
            return
        if len(self._again_ns) >= _MOST_KEYS:
            self._again_ns = {k: at for k, at in self._again_ns.items() if at > now_ns}
            if len(self._again_ns) >= _MOST_KEYS:
                return
        self._again_ns[key] = now_ns + _EVERY_NS
        self._log.warning("%s (%d so far)", plain_line(text), self.count)


def natural_key(name: str) -> tuple[tuple[str, int], ...]:
    """Return a sort key for names in which numbers are compared as numbers.

    Examples
    --------
    >>> sorted(["g10-0", "g2-1", "g2-0"], key=natural_key)
    ['g2-0', 'g2-1', 'g10-0']
    """
    parts = re.split(r"([0-9]+)", name)
    return tuple(zip(parts[::2], [*map(int, parts[1::2]), -1], strict=True))


def plain_line(text: str, most: int = _MOST_CHARACTERS) -> str:
    r"""Return ``text`` as one line without control characters.

    Examples
    --------
    >>> plain_line("a\n b \x1b[31m")
    'a b \\x1b[31m'
    """
    line = " ".join(text[: 4 * most].split())[:most]
    return printable(line)


def printable(text: str) -> str:
    """Return ``text`` with control characters and line ends escaped."""
    return text if text.isprintable() else "".join(map(_printable, text))


def _printable(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]
