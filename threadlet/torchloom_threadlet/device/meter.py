"""Finds the GPU that a process trains on, and measures its steps there; on a CPU it does nothing.

It imports torch for a GPU only.
"""

import contextlib
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torchloom_threadlet.trainer.phases import Phases
from torchloom_threadlet.trainer.sample_buffer import SampleBuffer

if TYPE_CHECKING:
    from torchloom_threadlet.device.steps import DeviceSteps

_LAST_READ_S = 0.5
_LOOK_S = 0.005


class DeviceMeter:
    """The measurement of one process.

    ``steps``: those on the GPU; None as long as no tensor on one was seen.
    """

    def __init__(self, samples: SampleBuffer, phases: Phases) -> None:
        self.steps: DeviceSteps | None = None
        self._samples, self._phases = samples, phases
        self._measured: weakref.WeakSet[Any] = weakref.WeakSet()
        self._undo: list[Callable[[], object]] = []
        self._is_closed = False

    def measure(self, part: Any) -> None:
        """Measure a model or an optimizer, once, if its parameters are on a GPU."""
        is_optimizer = hasattr(part, "param_groups")
        parameters = part.param_groups[0]["params"] if is_optimizer else part.parameters()
        tensor = next(iter(parameters), None)
        if not getattr(tensor, "is_cuda", False) or part in self._measured or self._is_closed:
            return
        from torchloom_threadlet.device.hooks import hook_model, hook_optimizer

        self._measured.add(part)
        self._undo += (hook_optimizer if is_optimizer else hook_model)(part, self._find(tensor))

    def row(self, metrics: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the row of a step that is over; numbers that the GPU computes come later."""
        if self.steps is None:
            for value in metrics.values():
                if getattr(value, "is_cuda", False):
                    return self._find(value).read_later(metrics)
            return metrics
        return self.steps.read_later(metrics)

    def close(self) -> None:
        """Leave models and optimizers as they were, and wait briefly for the last steps."""
        self._is_closed = True
        for undo in self._undo:
            with contextlib.suppress(Exception):  # the script's own code may have replaced it
                undo()
        if self.steps is None:
            return
        deadline = time.monotonic() + _LAST_READ_S
        while self.steps.read() and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        self.steps.give_up()

    def _find(self, tensor: Any) -> "DeviceSteps":
        if self.steps is None:
            from torchloom_threadlet.device.peak_flops import peak_flops
            from torchloom_threadlet.device.source import CudaDevice
            from torchloom_threadlet.device.steps import DeviceSteps

            device = CudaDevice(tensor.device)
            self._phases.device = self.steps = DeviceSteps(device)
            if self._samples.peak_flops is None:
                self._samples.peak_flops = peak_flops(device.name)
        return self.steps
