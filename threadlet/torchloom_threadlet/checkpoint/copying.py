"""Copy a state into a slot: what a forward pass may change at once, the rest beside training.

Weights and optimizer states stand still from one optimizer step to the next. Those on a GPU are
copied on a side stream, for which the next step of the optimizer waits on the GPU; those of the
host in a thread, for which it waits in a hook. A tensor that changed meanwhile all the same, which
torch counts unless it is made through ``.data``, makes the copy worthless: it is dropped.
"""

import threading
from collections.abc import Iterable

import torch
from torch import Tensor

from torchloom_core.checkpoints.layout import Piece
from torchloom_threadlet.checkpoint.device_copy import Pair, SideStreams
from torchloom_threadlet.checkpoint.slots import Slots

_Steady = list[tuple[str, Tensor, Tensor, int]]
"""Name, place, tensor and its version when the copy began."""


class Copy:
    """One copy into a slot; ``torn`` names a tensor that changed meanwhile, once it is over."""

    def __init__(
        self,
        slots: Slots,
        slot: int,
        pieces: Iterable[tuple[Piece, Tensor]],
        steady: set[str],
        streams: SideStreams,
    ) -> None:
        self.slot = slot
        self.torn = ""
        self._slots, self._streams = slots, streams
        self._error: BaseException | None = None
        self._host_copied = threading.Event()
        self._of_device: _Steady = []
        self._staged: list[Piece] = []
        at_once: list[Pair] = []
        later: _Steady = []
        for piece, tensor in pieces:
            if not tensor.is_cuda:
                place = slots.view(slot, piece)
                if piece.name in steady:
                    later.append((piece.name, place, tensor, tensor._version))
                else:
                    place.copy_(tensor)
                continue
            place = slots.device_view(slot, piece)
            if slots.is_staged:
                self._staged.append(piece)
            if piece.name in steady:
                self._of_device.append((piece.name, place, tensor, tensor._version))
            else:
                at_once.append((place, tensor))
        self._device_copies = streams.copy(
            at_once, [(place, tensor) for _, place, tensor, _ in self._of_device]
        )
        self._thread = threading.Thread(target=self._run, args=(later,), daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether all has been copied."""
        return not self._thread.is_alive() and all(copy.is_over for copy in self._device_copies)

    @property
    def is_held(self) -> bool:
        """Whether nothing is left for which the GPU has to wait."""
        return not self._of_device

    def hold(self) -> bool:
        """Let the optimizer change what has been copied only; return whether all has been.

        Waits for what is copied from the host. A GPU waits for what is copied from it.
        """
        if not self._device_copies:
            self._thread.join()
            return True
        self._host_copied.wait()
        if self._streams.is_capturing:  # torch synchronizes before it records a graph
            return False
        for copy in self._device_copies:
            copy.hold()
        self._compare(self._of_device)
        self._of_device = []
        return self.is_over

    def wait(self) -> None:
        """Wait until all has been copied; raises what the copying raised."""
        for copy in self._device_copies:
            copy.wait()
        self._compare(self._of_device)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self, pieces: _Steady) -> None:
        try:
            try:
                with torch.no_grad():
                    for _, place, tensor, _ in pieces:
                        place.copy_(tensor)
                self._compare(pieces)
            finally:
                self._host_copied.set()
            if self._staged:
                for copy in self._device_copies:
                    copy.wait()
                self._slots.unstage(self.slot, self._staged)
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self._error = error

    def _compare(self, pieces: _Steady) -> None:
        for name, _, tensor, version in pieces:
            if tensor._version != version:
                self.torn = name
