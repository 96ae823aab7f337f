"""What a training script registers with its loom: knobs, functions and named phases."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Unpack

from torchloom_threadlet.cleaning import error_line
from torchloom_threadlet.device.meter import DeviceMeter
from torchloom_threadlet.trainer.actuators import KnobForm, knob_of
from torchloom_threadlet.trainer.worker import Worker

_logger = logging.getLogger(__name__)


class LoomFunctions:
    """The part of a loom that takes the script's own functions."""

    _worker: Worker
    _device: DeviceMeter

    def knob(
        self,
        name: str,
        get: Callable[[], Any],
        set: Callable[[Any], object],
        **form: Unpack[KnobForm],
    ) -> None:
        """Register a knob: ``get()`` returns its value, ``set(value)`` is called between steps.

        A knob with ``fence="run"`` is set on all ranks between the same two steps; a joining rank
        sets it before it loads the weights. ``check(values)`` is called first with the values that
        all knobs would have, and raises if they are not compatible. One that is ``used_up`` by
        training, as a number of steps to skip, is not set again when the run restarts.
        A knob whose ``get`` raises is not registered, and a warning is logged.
        """
        try:
            self._worker.actuators.add_knob(knob_of(name, get, set, **form))
        except Exception as error:  # noqa: BLE001 - the user's function
            _logger.warning("knob %r is not registered: %s", name, error_line(error))
            return
        self._worker.announce()

    def on(self, verb: str, function: Callable[..., object]) -> None:
        """Offer a function for an operation, by its name; its capability says how it is called."""
        self._worker.operations.add_function(verb, function)
        self._worker.announce()

    def on_checkpoint(self, save: Callable[[], object]) -> None:
        """Have ``save()`` called, between steps, when a checkpoint is requested."""
        self.on("checkpoint", save)

    def on_rewind(self, rewind: Callable[[int], object]) -> None:
        """Have ``rewind(skip)`` called on all ranks, between the same two steps.

        It restores the last checkpoint (weights, optimizer, position in the data) and then skips
        ``skip`` batches. Not available with torchft's Manager, whose step only increases.
        """
        self.on("rewind", rewind)

    def on_drain(self, leave: Callable[[], object]) -> None:
        """Have ``leave()`` called, between steps, before :meth:`step` returns False."""
        self.on("drain", leave)

    def phase(self, name: str, *, at_most_s: float = 600.0) -> AbstractContextManager[None]:
        """Name work that takes longer than a step, such as an evaluation, so that it is no hang.

        Use ``with loom.phase("evaluate", at_most_s=300):`` or ``@loom.phase("evaluate")``. For
        ``at_most_s`` seconds the policy ``hang`` does not mind that no step ends. Phases may be
        nested, and used in any thread.
        """
        return self._worker.phase(name, at_most_s)

    def note(self, kind: str, /, **fields: Any) -> None:
        """Send an event to the Weaver; a value that is no number is sent as text."""
        self._worker.note(kind, fields)

    def measure(self, *parts: Any) -> None:
        """Measure models and optimizers that run on a GPU: ``forward_s``, ``backward_s`` and so on.

        Models as they are called, such as within ``DistributedDataParallel`` or ``torch.compile``;
        :meth:`~torchloom_threadlet.loom.Loom.manage` measures optimizers. On a CPU nothing is done.
        """
        for part in parts if self._worker.linked else ():
            try:
                self._device.measure(part)
            except Exception as error:  # noqa: BLE001 - a part of the user's own
                _logger.warning("%s is not measured: %s", type(part).__name__, error_line(error))
