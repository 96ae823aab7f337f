"""What a predictor has to beat: the fault count, the one best feature, a logistic regression.

A detection is held against two more, that learn from no label. They learn from the same moments
and are asked in the same pass, so that they cost little. Those that weigh features share the
predictor's, where it has some.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchloom_core.activation.discovery import PluginInfo
from torchloom_core.errors import ConfigError, PluginError
from torchloom_core.evaluate.forecasts.hindcasts import Progress
from torchloom_core.fitting.build import METRICS, build
from torchloom_core.fitting.shared_rows import SharedRows
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
    rows : SharedRows
        To be shown the examples that the predictor is shown.
    remarks : list of str
        Whom it is not compared with and why, one sentence each.
    """

    def __init__(
        self, fitting: Fitting, plugin: Predictor, installed: Sequence[PluginInfo]
    ) -> None:
        self._fitting = fitting
        self.remarks: list[str] = []
        self._alone: dict[str, Predictor] = {}
        self._by_rows: list[RowLearner] = []
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
                self._take(name, self._built(name, there[name], plugin), plugin)
            except (ConfigError, PluginError) as error:
                self.remarks.append(f"There is no comparison with {name}: {error}.")
        self.rows = SharedRows(self._by_rows)

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
        return built

    def _take(self, name: str, built: Predictor, plugin: Predictor) -> None:
        if not isinstance(built, RowLearner):
            self._alone[name] = built
            return
        shown: object = plugin
        if isinstance(shown, RowLearner):
            built.read(shown.features)
        self._by_rows.append(built)

    def learn(self, stages: Callable[[str], Progress]) -> dict[str, Predictor]:
        """Return those that can be asked, with what they have learned; the rest is remarked on."""
        able: dict[str, Predictor] = {}
        for name, plugin in self._alone.items():
            try:
                self._fitting.teach(plugin, stages(f"fit {name}"))
            except PluginError as error:
                if name in DETECTORS:
                    self.remarks.append(f"There is no comparison with {name}: {error}.")
                    continue
                self.remarks.append(f"{name} it is compared with learned nothing: {error}.")
            able[name] = plugin
        for learner in self._by_rows:
            try:
                self.rows.teach(learner)
            except PluginError as error:
                self.remarks.append(f"There is no comparison with {learner.name}: {error}.")
            else:
                able[learner.name] = learner
        return able

    def answered(self, said: Mapping[str, Said | PluginError]) -> dict[str, Said]:
        """Return what those have said that could be asked; the rest is remarked on."""
        found: dict[str, Said] = {}
        for name, answer in said.items():
            if isinstance(answer, PluginError):
                self.remarks.append(f"There is no comparison with {name}: {answer}.")
            else:
                found[name] = answer
        return found
