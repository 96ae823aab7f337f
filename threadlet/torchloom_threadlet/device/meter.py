"""Finds the GPU that a process trains on, and measures its steps there; on a CPU it does nothing.

It imports torch for a GPU only.
"""

import contextlib
import math
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torchloom_threadlet.cleaning import error_line, warn_once
from torchloom_threadlet.trainer.phases import Phases
from torchloom_threadlet.trainer.sample_buffer import SampleBuffer

if TYPE_CHECKING:
    from torchloom_threadlet.device.steps import DeviceSteps

_LAST_READ_S = 0.5


class DeviceMeter:
    """The measurement of one process.

    ``steps``: those on the GPU; None as long as no tensor on one was seen.
    ``not_there``: models and optimizers that may still move to one, until the step ends.
    """

    def __init__(self, samples: SampleBuffer, phases: Phases) -> None:
        self.steps: DeviceSteps | None = None
        self._samples, self._phases = samples, phases
        self._measured: weakref.WeakSet[Any] = weakref.WeakSet()
        self.not_there: list[Any] = []
        self._undo: list[Callable[[], object]] = []
        self._is_closed = False

    def measure(self, part: Any) -> None:
        """Measure a model or an optimizer, once, if it is on a GPU by the next step."""
        if not self._measure(part) and not self._is_closed:
            self.not_there.append(part)

    def _measure(self, part: Any) -> bool:
        """Return whether it is on a GPU."""
        is_optimizer = hasattr(part, "param_groups")
        parameters = part.param_groups[0]["params"] if is_optimizer else part.parameters()
        tensor = next(iter(parameters), None)
        if not getattr(tensor, "is_cuda", False):
            return False
        if part in self._measured or self._is_closed:
            return True
        from torchloom_threadlet.device.hooks import hook_model, hook_optimizer

        self._measured.add(part)
        self._undo += (hook_optimizer if is_optimizer else hook_model)(part, self._find(tensor))
        return True

    def row(self, metrics: dict[str, Any], is_linked: bool) -> Mapping[str, Any]:
        """Return the row of a step that is over, without gradients.

        Numbers that the GPU computes come later, if a sidecar is linked, which gets them.
        """
        while self.not_there:
            with contextlib.suppress(Exception):  # of a part of the user's own
                self._measure(self.not_there.pop())
        on_gpu = None
        for name, value in metrics.items():
            if type(value) is not float:
                metrics[name], is_on_gpu = _own(name, value)
                on_gpu = metrics[name] if is_on_gpu else on_gpu
        if not is_linked or (self.steps is None and on_gpu is None):
            return metrics
        return (self.steps or self._find(on_gpu)).read_later(metrics)

    def close(self) -> None:
        """Leave models and optimizers as they were, and wait briefly for the last steps."""
        self._is_closed = True
        for undo in self._undo:
            with contextlib.suppress(Exception):  # the script's own code may have replaced it
                undo()
        if self.steps is None:
            return
        self.steps.close(_LAST_READ_S)

    def _find(self, tensor: Any) -> "DeviceSteps":
        if self.steps is None:
            from torchloom_threadlet.device.peak_flops import peak_flops
            from torchloom_threadlet.device.source import CudaDevice
            from torchloom_threadlet.device.steps import DeviceSteps

            device = CudaDevice(tensor.device)
            self._phases.device = self.steps = DeviceSteps(device)
            self._samples.gpu = device.uuid
            if self._samples.peak_flops is None:
                self._samples.peak_flops = peak_flops(device.name)
        return self.steps


def _own(name: str, value: Any) -> tuple[Any, bool]:
    """Return a metric without its gradient, and whether it is on a GPU; NaN if it is no number."""
    try:
        own = value.detach() if hasattr(value, "detach") else value
        return own, bool(getattr(own, "is_cuda", False))
    except Exception as error:  # noqa: BLE001 - of the user's own type, or a lazy parameter
        warn_once(f"metric {name}", f"need a number ({error_line(error)})")
        return math.nan, False
