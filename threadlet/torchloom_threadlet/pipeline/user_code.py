"""Tells errors of the user's own code from those of a lost peer."""

from collections.abc import Iterator
from contextlib import contextmanager

from torchloom_threadlet.experts.peers import PeerError


class UserCodeError(BaseException):
    """Carries an error of a layer, loss, optimizer or batch out of torch's pipeline.

    No ``Exception``, as torch would replace it by a RuntimeError, which a lost peer raises too.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def of_the_user() -> Iterator[None]:
    """Let errors of the block reach the caller of ``step`` as they are."""
    try:
        yield
    except Exception as error:
        if isinstance(first_cause(error), PeerError):  # experts send messages in a layer
            raise
        raise UserCodeError(error) from error


def first_cause(error: BaseException) -> BaseException:
    """Return the error that has caused this one, or itself."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
