"""The baselines of a predictor: the fault count, the one best feature, a logistic regression.

A detection is also compared with two detectors that learn without labels. Baselines are fitted and
run in the predictor's own passes, so they cost little. Those with features use the predictor's,
if it has some.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torchloom_core.floor.errors import ConfigError, PluginError
from torchloom_core.interface.api import Predictor
from torchloom_core.interface.needs import windows_s
from torchloom_core.lab.activation.discovery import PluginInfo
from torchloom_core.lab.fitting.build import METRICS, build, usual_spans_s
from torchloom_core.lab.fitting.feasibility import available_bytes, refuse_without_room
from torchloom_core.lab.fitting.passes import CalibratedForecasts, Passes
from torchloom_core.lab.fitting.time_split import Fitting
from torchloom_core.lab.learning.row_learner import RowLearner
from torchloom_core.lab.learning.skill import BASELINES, DETECTORS, ROW_RULE

_SEASONAL, _STEP_S = "seasonal_residual", 900.0
_MAX_HEALTHY = 20_000
"""Rows of healthy workers: so few coefficients need no more."""


class Baselines:
    """The installed baselines of a predictor but itself; ``limits`` says which are missing."""

    def __init__(
        self, fitting: Fitting, plugin: Predictor, installed: Sequence[PluginInfo]
    ) -> None:
        self._fitting = fitting
        self.limits: list[str] = []
        self.plugins: dict[str, Predictor] = {}
        there = {info.name: info for info in installed}
        if ROW_RULE not in there and _SEASONAL in there:
            there[ROW_RULE] = there[_SEASONAL]
        is_detection = fitting.task.kind == "detect"
        for name in (*BASELINES, *DETECTORS) if is_detection else BASELINES:
            if name == plugin.name:
                continue
            if name not in there:
                self.limits.append(f"No comparison with {name}: it is not installed.")
                continue
            try:
                self.plugins[name] = self._built(name, there[name], plugin)
            except (ConfigError, PluginError) as error:
                self.limits.append(f"No comparison with {name}: {error}.")

    def _built(self, name: str, info: PluginInfo, plugin: Predictor) -> Predictor:
        tick_s = self._fitting.settings.tick_s
        options: dict[str, Any] = {"horizon_s": plugin.horizon_s}
        if name in DETECTORS:
            options["step_s"] = max(_STEP_S, tick_s)
        if name == ROW_RULE:
            options |= {"step_s": tick_s, "seasons_s": [], "combine": "max", "cap": 1000.0}
        if info.cls is not None and issubclass(info.cls, RowLearner):
            options[METRICS] = list(windows_s(plugin.needs))
            options["spans_s"] = usual_spans_s(plugin.horizon_s, tick_s)
            options["max_healthy"] = _MAX_HEALTHY
            options["seed"] = self._fitting.settings.seed
        built, _ = build(self._fitting.bundle, info, options, tick_s=tick_s, source=name)
        refuse_without_room(self._fitting.bundle, self._fitting.settings, built, available_bytes())
        shown: object = plugin
        if isinstance(built, RowLearner) and isinstance(shown, RowLearner):
            built.read(shown.features)
        return built

    @property
    def usable_unfitted(self) -> set[int]:
        """Indices, after the predictor's, of baselines that forecast also without a fit."""
        return {
            number
            for number, (name, plugin) in enumerate(self.plugins.items(), 1)
            if not isinstance(plugin, RowLearner) and name not in DETECTORS
        }

    def by_name(
        self, passes: Passes, forecasts: Mapping[int, CalibratedForecasts]
    ) -> dict[str, CalibratedForecasts]:
        """Return the baselines' forecasts by name; a missing one is added to ``limits``."""
        found: dict[str, CalibratedForecasts] = {}
        for number, name in enumerate(self.plugins, 1):
            if why := passes.unfitted.get(number):
                self.limits.append(f"The baseline {name} could not be fitted: {why}.")
            if number in forecasts:
                found[name] = forecasts[number]
            else:
                self.limits.append(f"No comparison with {name}: {passes.refused[number]}.")
        return found
