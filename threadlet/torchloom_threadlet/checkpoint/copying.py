"""Copy a state into a slot: what a forward pass may change at once, the rest beside training.

Weights and optimizer states stand still from one optimizer step to the next, so they are copied in
a thread; a hook makes the next step of the optimizer wait for it. A tensor that changed meanwhile
all the same, which torch counts, makes the copy worthless: it is dropped.
"""

import threading
from collections.abc import Iterable

import torch
from torch import Tensor

from torchloom_core.checkpoints.layout import Piece
from torchloom_threadlet.checkpoint.slots import Slots


class Copy:
    """One copy into a slot; ``torn`` names a tensor that changed meanwhile, once it is over."""

    def __init__(
        self, slots: Slots, slot: int, pieces: Iterable[tuple[Piece, Tensor]], steady: set[str]
    ) -> None:
        self.slot = slot
        self.torn = ""
        self._error: BaseException | None = None
        self._ready: torch.cuda.Event | None = None
        later = []
        for piece, tensor in pieces:
            place = slots.view(slot, piece)
            if piece.name in steady:
                later.append((piece.name, place, tensor, tensor._version))
            else:
                place.copy_(tensor)
        if any(tensor.is_cuda for _, _, tensor, _ in later):
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready.record()
        self._thread = threading.Thread(target=self._run, args=(later,), daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether all has been copied."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Wait until all has been copied; raises what the copying raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self, pieces: list[tuple[str, Tensor, Tensor, int]]) -> None:
        try:
            if self._ready is not None:
                self._ready.synchronize()
            with torch.no_grad():
                for _, place, tensor, _ in pieces:
                    place.copy_(tensor)
            for name, _, tensor, version in pieces:
                if tensor._version != version:
                    self.torn = name
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self._error = error
