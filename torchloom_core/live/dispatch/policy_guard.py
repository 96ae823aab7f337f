"""Stop a policy that takes too long; the Weaver has a guard with a clock."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

OVERRAN = "overran"


class PolicyOverran(BaseException):
    """A policy exceeded its time; no Exception, so that a policy's ``except`` does not catch it."""


class Guard(Protocol):
    """Decides whether a policy overruns: live by the clock, in a replay by the record."""

    @contextmanager
    def limit(self, policy: str, seq: int) -> Iterator[None]:
        """Raise PolicyOverran inside the block if the policy overruns at this input."""


class RecordedGuard:
    """Overruns exactly where the trajectory recorded an overrun."""

    def __init__(self, overruns: Iterable[tuple[int, str, str]] = ()) -> None:
        self._overruns = {(seq, policy): detail for seq, policy, detail in overruns}

    @contextmanager
    def limit(self, policy: str, seq: int) -> Iterator[None]:
        """Raise at once if the record has an overrun at this input."""
        detail = self._overruns.get((seq, policy))
        if detail is not None:
            raise PolicyOverran(detail)
        yield
