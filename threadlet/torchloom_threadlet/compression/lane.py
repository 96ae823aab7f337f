"""The thread that runs the compressed reductions of one quorum, in the order of their calls.

One reduction is several collectives, and all ranks must issue all of theirs in the same order.
"""

import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

_Begun = TypeVar("_Begun")


class Lane:
    """The reductions of one quorum, until it is over or one of them fails.

    After a failure the ranks no longer agree on which collective is next, and gloo ends a process
    in which two different ones meet. So none is issued any more, until the process group is
    reconfigured and has a new lane.
    """

    def __init__(self) -> None:
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "torchloom-compression")
        self._issuing = threading.Lock()
        self._last: concurrent.futures.Future[None] | None = None
        self._error: Exception | None = None
        self._runner = 0

    @property
    def ended(self) -> bool:
        """Whether nothing is issued any more."""
        return self._error is not None

    def add(self, run: Callable[[], None]) -> None:
        """Have ``run`` called after everything added before; an exception of it ends the lane."""
        self._last = self._thread.submit(self._run, run)

    def issue(self, begin: Callable[[], _Begun]) -> _Begun:
        """Call ``begin``, which issues a collective, unless the lane has ended.

        Raises RuntimeError if it has ended.
        """
        with self._issuing:
            self.raise_if_ended()
            return begin()

    def raise_if_ended(self) -> None:
        """Raise the error that ended the lane, if any."""
        if self._error is not None:
            raise RuntimeError(f"the process group needs a new quorum: {self._error}")

    def drain(self) -> None:
        """Wait until everything added has run; a call from within returns at once.

        Raises RuntimeError if one of the reductions has failed.
        """
        if self._last is not None and threading.get_ident() != self._runner:
            self._last.result()
        self.raise_if_ended()

    def end(self, error: Exception) -> None:
        """Issue nothing more, also of what waits to run."""
        self._error = self._error or error
        with self._issuing:
            self._thread.shutdown(wait=False)

    def _run(self, run: Callable[[], None]) -> None:
        self._runner = threading.get_ident()
        try:
            run()
        except Exception as error:  # noqa: BLE001 - the work's waiter gets it
            self._error = self._error or error
