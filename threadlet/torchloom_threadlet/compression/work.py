"""The handle of a compressed allreduce, for which torchft waits."""

import concurrent.futures
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work

_NO_TIMEOUT = timedelta(0)
_NOWHERE = nullcontext()


class CompressedWork(Work):
    """Complete once the tensors are reduced; an error is raised by ``wait`` and by the future.

    ``tensors``: the future's result.
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()
        device = tensors[0].device
        self._tensors = tensors
        self._side = None if device.type == "cpu" else _SideStream(device)
        self._future: torch.futures.Future[list[Tensor]] = torch.futures.Future(
            devices=[device] if self._side else None
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
    """A stream of its own, which begins after the current one's present work."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.Stream(device)
        self._ready = torch.accelerator.current_stream(device).record_event()
        self._done: torch.Event | None = None

    @contextmanager
    def entered(self, tensors: list[Tensor]) -> Iterator[None]:
        """Issue into the stream, and keep the tensors' memory from earlier reuse."""
        with self._stream:
            self._stream.wait_event(self._ready)
            for tensor in tensors:
                tensor.record_stream(self._stream)
            yield
            self._done = self._stream.record_event()

    def block_current_stream(self) -> None:
        """Let the current stream wait for what was issued."""
        if self._done is not None:
            torch.accelerator.current_stream(self._device).wait_event(self._done)
