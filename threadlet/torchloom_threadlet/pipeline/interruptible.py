"""Calls that another thread can end, though nothing ends gloo's own waits in them."""

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

T = TypeVar("T")


class Interruptible:
    """Makes calls in a thread of its own; one that is interrupted is left to its timeout there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] | None = None
        self._present: Future[Any] | None = None

    def call(self, function: Callable[[], T], check: Callable[[], object]) -> T:
        """Return what the function returns.

        Parameters
        ----------
        check : callable
            Raises if the call must not begin; an interruption after it ends the call.
        """
        future: Future[T] = Future()
        with self._lock:
            check()
            if self._calls is None:
                self._calls = queue.SimpleQueue()
                threading.Thread(
                    target=_serve, args=(self._calls,), name="torchloom-waits", daemon=True
                ).start()
            self._present = future
            self._calls.put((function, future))
        return future.result()

    def interrupt(self, error: RuntimeError) -> None:
        """Have the present call raise this error, if there is one."""
        with self._lock:
            present, self._present = self._present, None
            if present is None or self._calls is None:
                return
            with contextlib.suppress(InvalidStateError):  # it has just ended
                present.set_exception(error)
                self._calls.put(None)
                self._calls = None


def _serve(calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]) -> None:
    while (call := calls.get()) is not None:
        function, future = call
        with contextlib.suppress(InvalidStateError):
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001 - raised in the thread that waits
                future.set_exception(error)
        del call, function, future  # they hold the group, and with that its connections
