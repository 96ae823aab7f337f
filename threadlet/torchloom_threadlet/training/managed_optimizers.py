"""The optimizers that a script passes to ``manage``: their knobs and their gradients."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from torchloom_threadlet.training.gradients import Gradients
from torchloom_threadlet.training.optimizer_knobs import managed
from torchloom_threadlet.training.switchable import SwitchableOptimizer


class ManagedOptimizers:
    """All optimizers among the arguments of one ``manage``, registered with ``loom``.

    ``can_vote``: whether the settings change on all ranks at one step, or on this worker alone.
    ``step``: returns the number of the step, the same on all ranks.
    """

    def __init__(
        self,
        loom: Any,
        parts: Iterable[Any],
        *,
        can_vote: bool,
        step: Callable[[], int],
        measure_update: bool,
    ) -> None:
        self._gradients: list[tuple[str, Gradients]] = []
        for each in managed(parts):
            if isinstance(each.optimizer, SwitchableOptimizer):
                each.optimizer.register(each.within(loom))
            each.register(loom, can_vote=can_vote)
            gradients = Gradients(each.optimizer, step=step, measure_update=measure_update)
            gradients.register(each.within(loom))
            self._gradients.append((each.prefix, gradients))

    def figures(self) -> dict[str, Tensor]:
        """Return the measurements of the last step, by their names in telemetry."""
        return {
            prefix + name: value
            for prefix, gradients in self._gradients
            for name, value in gradients.figures().items()
        }
