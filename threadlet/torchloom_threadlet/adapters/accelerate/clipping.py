"""Clipping by ``accelerator.clip_grad_norm_``, whose limit a knob replaces."""

import math
from collections.abc import Callable
from typing import Any

from torchloom_threadlet.adapters.replaced import replaced


class Clipping:
    """Replaces the limit that a script passes.

    Parameters
    ----------
    accelerator : accelerate.Accelerator
        The script's.
    begin : callable
        Called before the script's first clipping; from then on torchLoom does not clip.
    note : callable
        Called with the norm of each step's gradients, before clipping.

    Attributes
    ----------
    given : float, optional
        The limit that the script passes.
    wanted : float, optional
        The limit that was set; 0: no clipping.
    norm : Tensor, optional
        Of the last step's gradients, before clipping.
    end : callable
        Leaves the Accelerator as it was.
    """

    def __init__(
        self, accelerator: Any, begin: Callable[[], None], note: Callable[[Any], None]
    ) -> None:
        self._clip, self._begin, self._note = accelerator.clip_grad_norm_, begin, note
        self.given: float | None = None
        self.wanted: float | None = None
        self.norm: Any = None
        self.end = replaced(accelerator, "clip_grad_norm_", self._clipped)

    def get(self) -> float:
        """Return the limit in force; 0: no clipping."""
        limit = self.given if self.wanted is None else self.wanted
        return 0.0 if limit is None or math.isinf(limit) else float(limit)

    def set(self, limit: float) -> None:
        """Set the limit; 0 ends the clipping."""
        self.wanted = limit

    def _clipped(self, parameters: Any, max_norm: Any, *rest: Any, **more: Any) -> Any:
        is_first = self.given is None
        self.given = float(max_norm)
        if is_first:
            self._begin()
        limit = max_norm if self.wanted is None else (self.wanted or math.inf)
        self.norm = self._clip(parameters, limit, *rest, **more)
        self._note(self.norm)
        return self.norm
