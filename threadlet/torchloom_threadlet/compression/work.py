"""The compressed reductions of one quorum: the thread that runs them, and their handles.

One reduction is several collectives, and all ranks must issue all of theirs in the same order.
"""

import concurrent.futures
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed import Work

from torchloom_threadlet.compression.staging import Accelerator

_Begun = TypeVar("_Begun")
_NO_TIMEOUT = timedelta(0)
_NOWHERE = nullcontext()


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


class CompressedWork(Work):
    """Complete once the tensors are reduced; an error is raised by ``wait`` and by the future.

    ``accelerator``: whose coding stream reduces them; None in the host's memory.
    """

    def __init__(self, tensors: list[Tensor], accelerator: Accelerator | None = None) -> None:
        super().__init__()
        self._tensors = tensors
        self._side = _SideStream(accelerator) if accelerator else None
        self._future: torch.futures.Future[list[Tensor]] = torch.futures.Future(
            devices=accelerator.devices if accelerator else None
        )
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()

    def run(self, reduce: Callable[[], object]) -> None:
        """Reduce, in a lane's thread; the waiting thread gets an error, too."""
        try:
            with torch.no_grad(), self._side.entered(self._tensors) if self._side else _NOWHERE:
                reduce()
                self._future.set_result(self._tensors)
        except Exception as error:
            self.fail(error)
            raise
        self._ended.set_result(None)

    def fail(self, error: Exception) -> None:
        """End it with ``error``."""
        self._future.set_exception(RuntimeError(str(error)))  # type: ignore[arg-type]
        self._ended.set_exception(RuntimeError(str(error)))

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait until it has ended; on an accelerator the current stream waits.

        Raises RuntimeError if it has failed, or has not ended within ``timeout``.
        """
        try:
            self._ended.result(timeout.total_seconds() or None)
        except TimeoutError:
            raise RuntimeError(f"the reduction did not end within {timeout}") from None
        self.block_current_stream()
        return True

    def synchronize(self) -> None:
        """Wait as :meth:`wait` does."""
        self.wait()

    def block_current_stream(self) -> None:
        """Let the current stream wait for it, once it is issued."""
        self._ended.result()
        if self._side:
            self._side.block_current_stream()

    def get_future(self) -> Any:
        """Return a future that holds the tensors."""
        return self._future

    def result(self) -> list[Tensor]:
        """Return the tensors, reduced where it has ended."""
        return self._tensors

    def is_completed(self) -> bool:
        """Return whether it has ended, with or without an error."""
        return self._ended.done()

    def is_success(self) -> bool:
        """Return whether it has ended without an error."""
        return self._ended.done() and self._ended.exception() is None

    def exception(self) -> Any:
        """Return the error that ended it, if any."""
        return self._ended.exception() if self._ended.done() else None


class _SideStream:
    """A reduction's part of the coding stream; it begins after the current stream's present work.

    One stream for all: the allocator keeps freed memory for the stream that it was allocated in.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._ready = accelerator.mark(accelerator.current())
        self._done: Any = None

    @contextmanager
    def entered(self, tensors: list[Tensor]) -> Iterator[None]:
        """Issue into the stream, and keep the tensors' memory from earlier reuse."""
        accelerator, stream = self._accelerator, self._accelerator.coding
        with accelerator.on(stream):
            stream.wait_event(self._ready)
            for tensor in tensors:
                accelerator.keep(tensor, stream)
            yield
            self._done = accelerator.mark(stream)

    def block_current_stream(self) -> None:
        """Let the current stream wait for what was issued."""
        if self._done is not None:
            self._accelerator.current().wait_event(self._done)
