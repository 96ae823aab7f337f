"""A torchLoom policy; enable it by a table ``[policies.example]`` in torchloom.toml."""

from collections.abc import Iterable

import msgspec
import numpy as np

from torchloom_core.plugin import Alert, FleetView, Need, Proposal, Registry, grow, hookimpl


class Example:
    """Raise an alert when a worker's GPU becomes hotter than ``limit_celsius``."""

    name = "example"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options in ``[policies.example]``.

        Attributes
        ----------
        limit_celsius : float
            Temperature above which an alert is raised.
        """

        limit_celsius: float = 85.0

    def __init__(self, options: Options) -> None:
        self._limit_celsius = options.limit_celsius
        self._was_hot = np.zeros(0, dtype=bool)  # (workers,)
        self.needs = (Need("gpu_temp_celsius"),)

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Look at the newest temperatures once a tick."""
        celsius = view.latest("gpu_temp_celsius")  # (workers,), NaN where missing
        hot = celsius > self._limit_celsius
        news = hot & ~grow(self._was_hot, len(view), fill=False)
        self._was_hot = hot
        for row in np.flatnonzero(news).tolist():
            worker = view.workers[row]
            text = f"{worker} is at {celsius[row]:.0f} degrees, above {self._limit_celsius:g}"
            yield Proposal(action=Alert(worker=worker, text=text), reason=text)


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(Example)
