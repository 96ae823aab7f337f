"""What a predictor has to beat: the fault count, the one best feature, a logistic regression.

A detection is held against two more, that learn from no label. They learn from the same moments
and are asked in the same pass, so that they cost little. Those that weigh features share the
predictor's, where it has some.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torchloom_core.activation.discovery import PluginInfo
from torchloom_core.errors import ConfigError, PluginError
from torchloom_core.fitting.build import METRICS, build
from torchloom_core.fitting.memory import available_bytes, refuse_without_room
from torchloom_core.fitting.passes import Passes
from torchloom_core.fitting.stages import Fitting, Said
from torchloom_core.learning.row_learner import RowLearner
from torchloom_core.learning.skill import BASELINES, DETECTORS, ROW_RULE
from torchloom_core.plugin.api import Predictor
from torchloom_core.plugin.needs import windows_s

_SPANS = (0.5, 2.0)
_SEASONAL, _STEP_S = "seasonal_residual", 900.0
_MAX_HEALTHY = 20_000
"""Rows of workers that did not fail: so few coefficients need no more."""


def usual_spans_s(horizon_s: float, tick_s: float) -> list[float]:
    """Return over how long metrics are summed up where nobody says, seconds.

    Half a horizon and two; none is shorter than two samples.
    """
    return sorted({max(2.0 * tick_s, share * horizon_s) for share in _SPANS})


class Baselines:
    """The installed baselines, beside a predictor that is fitted.

    Parameters
    ----------
    fitting : Fitting
        Of that predictor.
    plugin : Predictor
        The predictor itself; it is not compared with itself.
    installed : sequence of PluginInfo
        Those of ``BASELINES`` and ``DETECTORS`` that there are.

    Attributes
    ----------
    plugins : dict of str to Predictor
        Those that it is compared with, by name.
    remarks : list of str
        Whom it is not compared with and why, one sentence each.
    """

    def __init__(
        self, fitting: Fitting, plugin: Predictor, installed: Sequence[PluginInfo]
    ) -> None:
        self._fitting = fitting
        self.remarks: list[str] = []
        self.plugins: dict[str, Predictor] = {}
        there = {info.name: info for info in installed}
        if ROW_RULE not in there and _SEASONAL in there:
            there[ROW_RULE] = there[_SEASONAL]
        is_detection = fitting.task.kind == "detect"
        for name in (*BASELINES, *DETECTORS) if is_detection else BASELINES:
            if name == plugin.name:
                continue
            if name not in there:
                self.remarks.append(f"{name} is not installed: there is no comparison with it.")
                continue
            try:
                self.plugins[name] = self._built(name, there[name], plugin)
            except (ConfigError, PluginError) as error:
                self.remarks.append(f"There is no comparison with {name}: {error}.")

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
    def asked_anyway(self) -> set[int]:
        """Places, after the predictor's, of those that judge also where nothing is to be learned.

        A detector that has not learned what is usual judges nobody.
        """
        return {
            number
            for number, (name, plugin) in enumerate(self.plugins.items(), 1)
            if not isinstance(plugin, RowLearner) and name not in DETECTORS
        }

    def answered(self, passes: Passes, said: Mapping[int, Said]) -> dict[str, Said]:
        """Return by name what those have said that could be asked; the rest is remarked on.

        Parameters
        ----------
        passes : Passes
            In which they come right after the predictor itself.
        said : mapping of int to Said
            By their places there.
        """
        found: dict[str, Said] = {}
        for number, name in enumerate(self.plugins, 1):
            if why := passes.untaught.get(number):
                self.remarks.append(f"{name} it is compared with learned nothing: {why}.")
            if number in said:
                found[name] = said[number]
            else:
                why = passes.refused[number]
                self.remarks.append(f"There is no comparison with {name}: {why}.")
        return found
