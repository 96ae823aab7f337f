"""Two slots in shared memory, into which a rank copies its state: one is written, one is free.

They are a file in ``/dev/shm``, made and touched beforehand, so that a copy meets no page fault;
the file outlives a killed trainer until the writer has stored it.
"""

import fcntl
import mmap
import os
import secrets
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from torchloom_core.checkpoints.layout import Piece
from torchloom_threadlet.checkpoint.json_state import dtype_named
from torchloom_threadlet.checkpoint.writer.orders import SLOTS

_MEMORY = Path("/dev/shm")
_PREFIX = "torchloom-"


class Slots:
    """A mapped file of two slots of ``bytes`` each.

    Raises OSError if there is no room for it.
    """

    def __init__(self, size: int) -> None:
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

    def view(self, slot: int, piece: Piece) -> Tensor:
        """Return the tensor of a slot into which a piece is copied."""
        begin = slot * self.bytes + piece.at
        part = self._all[begin : begin + piece.bytes]
        return part.view(dtype_named(piece.dtype)).view(piece.sizes)

    def put(self, slot: int, at: int, data: bytes) -> None:
        """Write bytes into a slot."""
        begin = slot * self.bytes + at
        self._memory[begin : begin + len(data)] = data

    def remove(self) -> None:
        """Remove the file; the memory is freed once nobody has it mapped."""
        self.path.unlink(missing_ok=True)
        self._file.close()


class ComingSlots:
    """Slots that are made in a thread: to touch gigabytes takes seconds."""

    def __init__(self, size: int) -> None:
        self._made: Slots | None = None
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._make, args=(size,), daemon=True)
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

    def _make(self, size: int) -> None:
        try:
            self._made = Slots(size)
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
