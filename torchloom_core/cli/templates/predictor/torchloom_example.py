"""A torchLoom predictor; enable it by a table ``[predictors.example]`` in torchloom.toml."""

import msgspec
import numpy as np

from torchloom_core.plugin import FleetView, Hazard, Need, Registry, hookimpl


class Example:
    """Forecast a failure of each worker whose GPU is hotter than ``limit_celsius``."""

    name = "example"
    horizon_s = 3600.0
    every_s = 60.0

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options in ``[predictors.example]``.

        Attributes
        ----------
        limit_celsius : float
            Temperature above which a failure is likely.
        probability : float
            Probability that a worker above the limit fails within the horizon.
        otherwise : float
            The same for the others.
        """

        limit_celsius: float = 85.0
        probability: float = 0.2
        otherwise: float = 0.001

    def __init__(self, options: Options) -> None:
        self._options = options
        self.needs = (Need("gpu_temp_celsius"),)

    def forecast(self, view: FleetView) -> Hazard:
        """Return the probability of a failure within the horizon, (workers,)."""
        options, celsius = self._options, view.latest("gpu_temp_celsius")  # NaN where missing
        hazard = np.where(celsius > options.limit_celsius, options.probability, options.otherwise)
        return Hazard(probability=np.where(np.isnan(celsius), np.nan, hazard))


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the predictor."""
    registry.predictor(Example)
