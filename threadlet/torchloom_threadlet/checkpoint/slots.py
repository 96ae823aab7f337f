"""Two slots in shared memory, into which a rank copies its state: one is written, one is free.

They are a file in ``/dev/shm``, made and touched beforehand, so that a copy meets no page fault;
the file outlives a killed trainer until the writer has stored it. Where tensors are on a GPU the
mapping is page-locked, so that the GPU writes into it while the host goes on.
"""

import fcntl
import logging
import mmap
import os
import secrets
import tempfile
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchloom_core.checkpoints.layout import Piece
from torchloom_threadlet.checkpoint.json_state import dtype_named
from torchloom_threadlet.checkpoint.writer.orders import SLOTS

_MEMORY = Path("/dev/shm")
_PREFIX = "torchloom-"
_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for all GPUs

_logger = logging.getLogger(__name__)


class Slots:
    """A mapped file of two slots of ``bytes`` each, page-locked if a GPU is given.

    Where it cannot be page-locked, the GPU's tensors are staged in a buffer that is, and copied on
    by a thread. Raises OSError if there is no room for it.

    Attributes
    ----------
    is_staged : bool
        Whether there is such a buffer.
    """

    def __init__(
        self, size: int, device: torch.device | None = None, cuda: Any = torch.cuda
    ) -> None:
        folder = _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())
        self.bytes = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        mine = f"{_PREFIX}{os.getuid()}-"
        _remove_left_over(folder, mine)
        self.path = folder / f"{mine}{os.getpid()}-{secrets.token_hex(4)}"
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH)  # it is in use as long as this process has it open
            os.posix_fallocate(handle, 0, SLOTS * self.bytes)
            self._memory = mmap.mmap(handle, SLOTS * self.bytes)
        except OSError:
            self.path.unlink(missing_ok=True)
            os.close(handle)
            raise
        self._file = os.fdopen(handle)
        self._all = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._all.zero_()
        self._staging: Tensor | None = None
        if device is not None:
            # In a thread: an error that CUDA keeps would surface in the training's next kernel.
            thread = threading.Thread(target=self._lock_pages, args=(device, cuda))
            thread.start()
            thread.join()

    @property
    def is_staged(self) -> bool:  # noqa: D102 - see the class
        return self._staging is not None

    def view(self, slot: int, piece: Piece) -> Tensor:
        """Return the tensor of a slot into which a piece is copied."""
        return _typed(self._all, slot * self.bytes + piece.at, piece)

    def device_view(self, slot: int, piece: Piece) -> Tensor:
        """Return the tensor into which a GPU copies a piece of this slot."""
        if self._staging is None:
            return self.view(slot, piece)
        return _typed(self._staging, piece.at, piece)

    def unstage(self, slot: int, pieces: Iterable[Piece]) -> None:
        """Copy pieces from the buffer into the slot."""
        for piece in pieces:
            self.view(slot, piece).copy_(self.device_view(slot, piece))

    def put(self, slot: int, at: int, data: bytes) -> None:
        """Write bytes into a slot."""
        begin = slot * self.bytes + at
        self._memory[begin : begin + len(data)] = data

    def remove(self) -> None:
        """Remove the file; the memory is freed once nobody has it mapped."""
        self.path.unlink(missing_ok=True)
        self._file.close()

    def _lock_pages(self, device: torch.device, cuda: Any) -> None:
        try:
            with cuda.device(device):  # a thread begins with GPU 0, another rank's
                cudart, at = cuda.cudart(), self._all.data_ptr()
                if not int(cudart.cudaHostRegister(at, SLOTS * self.bytes, _PORTABLE)):
                    weakref.finalize(self, _unlock_pages, cudart, at).atexit = False
                    return
                self._staging = torch.empty(
                    self.bytes, dtype=torch.uint8, device="cpu", pin_memory=True
                )
        except Exception as error:  # noqa: BLE001 - copies are right without it, but block
            _logger.warning("saves block training, as no memory can be page-locked: %s", error)
        else:
            _logger.info("slots cannot be page-locked: copies are staged")


def _typed(memory: Tensor, begin: int, piece: Piece) -> Tensor:
    part = memory[begin : begin + piece.bytes]
    return part.view(dtype_named(piece.dtype)).view(piece.sizes)


def _unlock_pages(cudart: Any, at: int) -> None:
    with suppress(Exception):
        cudart.cudaHostUnregister(at)


class ComingSlots:
    """Slots that are made in a thread: to touch and lock gigabytes takes seconds."""

    def __init__(self, size: int, device: torch.device | None) -> None:
        self._made: Slots | None = None
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._make, args=(size, device), daemon=True)
        self._thread.start()

    def wait(self) -> Slots:
        """Wait until they are made, and return them; raises OSError if there is no room."""
        self._thread.join()
        if self._made is None:
            raise self._error or OSError("the slots were not made")
        return self._made

    def give_up(self) -> None:
        """Remove them."""
        with suppress(OSError):
            self.wait().remove()

    def _make(self, size: int, device: torch.device | None) -> None:
        try:
            self._made = Slots(size, device)
        except OSError as error:
            self._error = error


def _remove_left_over(folder: Path, prefix: str) -> None:
    """Remove files of ended trainers whose writers were killed, too; others have them mapped."""
    for path in folder.glob(f"{prefix}*"):
        with suppress(OSError):  # it is in use, or another user's
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(handle) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
