"""Tells errors of the user's own code from those of a lost peer."""

from collections.abc import Iterator
from contextlib import contextmanager


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
        raise UserCodeError(error) from error
