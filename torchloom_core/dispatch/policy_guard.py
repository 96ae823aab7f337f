"""What stops a policy that takes too long; the Weaver has one that goes by the clock."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

OVERRAN = "overran"


class PolicyOverran(BaseException):
    """A policy used up its time; not an Exception, so that no policy catches it in passing."""


class Guard(Protocol):
    """Decides whether a policy overruns: by the clock live, by the record in a replay."""

    @contextmanager
    def limit(self, policy: str, seq: int) -> Iterator[None]:
        """Raise PolicyOverran inside the block if the policy overruns at this input."""


class RecordedGuard:
    """Let exactly those policies overrun that overran when the trajectory was recorded."""

    def __init__(self, overruns: Iterable[tuple[int, str, str]] = ()) -> None:
        self._overruns = {(seq, policy): detail for seq, policy, detail in overruns}

    @contextmanager
    def limit(self, policy: str, seq: int) -> Iterator[None]:
        """Raise at once if the record says so."""
        detail = self._overruns.get((seq, policy))
        if detail is not None:
            raise PolicyOverran(detail)
        yield
