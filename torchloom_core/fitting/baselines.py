"""What a predictor has to beat: the fault count, the one best feature, a logistic regression.

They learn from the same moments and are asked in the same pass, so that they cost little. Those
that weigh features share the predictor's, where it has some.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torchloom_core.activation.discovery import PluginInfo
from torchloom_core.errors import ConfigError, PluginError
from torchloom_core.evaluate.forecasts.hindcasts import Progress
from torchloom_core.fitting.build import METRICS, build
from torchloom_core.fitting.stages import Fitting
from torchloom_core.learning.row_learner import RowLearner
from torchloom_core.learning.rows import RowGathering
from torchloom_core.learning.skill import BASELINES
from torchloom_core.plugin.api import Example, Predictor
from torchloom_core.plugin.needs import PredictorNeed, windows_s

_SPANS = (0.5, 2.0)
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
        Those of ``BASELINES`` that there are.

    Attributes
    ----------
    needs : tuple of Need or NeedFaults
        What has to be in a view for :meth:`add`.
    remarks : list of str
        Whom it is not compared with and why, one sentence each.
    """

    def __init__(
        self, fitting: Fitting, plugin: Predictor, installed: Sequence[PluginInfo]
    ) -> None:
        self._fitting = fitting
        self.remarks: list[str] = []
        self._alone: list[Predictor] = []
        self._by_rows: list[RowLearner] = []
        there = {info.name: info for info in installed}
        for name in BASELINES:
            if name == plugin.name:
                continue
            if name not in there:
                self.remarks.append(f"{name} is not installed: there is no comparison with it.")
                continue
            try:
                self._take(self._built(there[name], plugin), plugin)
            except (ConfigError, PluginError) as error:
                self.remarks.append(f"There is no comparison with {name}: {error}.")
        self._rows = [
            RowGathering(learner.features, _MAX_HEALTHY, fitting.settings.seed)
            for learner in self._by_rows[:1]
        ]
        self.needs: tuple[PredictorNeed, ...] = tuple(
            need for learner in self._by_rows[:1] for need in learner.needs
        )

    def _built(self, info: PluginInfo, plugin: Predictor) -> Predictor:
        tick_s = self._fitting.settings.tick_s
        options: dict[str, Any] = {"horizon_s": plugin.horizon_s}
        if info.cls is not None and issubclass(info.cls, RowLearner):
            options[METRICS] = list(windows_s(plugin.needs))
            options["spans_s"] = usual_spans_s(plugin.horizon_s, tick_s)
        built, _ = build(self._fitting.bundle, info, options, tick_s=tick_s, source=info.name)
        return built

    def _take(self, built: Predictor, plugin: Predictor) -> None:
        if not isinstance(built, RowLearner):
            self._alone.append(built)
            return
        others: list[object] = [plugin, *self._by_rows[:1]]
        for other in others:
            if isinstance(other, RowLearner):
                built.read(other.features)
        self._by_rows.append(built)

    def add(self, example: Example) -> None:
        """See one example that the predictor is shown."""
        for rows in self._rows:
            rows.add(example)

    def learn(self, stages: Callable[[str], Progress]) -> list[Predictor]:
        """Return those that can be asked, with what they have learned; the rest is remarked on."""
        for plugin in self._alone:
            try:
                self._fitting.teach(plugin, stages(f"fit {plugin.name}"))
            except PluginError as error:
                self.remarks.append(f"{plugin.name} it is compared with learned nothing: {error}.")
        able: list[Predictor] = [*self._alone]
        for learner in self._by_rows:
            try:
                learner.learn(self._rows[0].rows(learner.name))
            except PluginError as error:
                self.remarks.append(f"There is no comparison with {learner.name}: {error}.")
            else:
                able.append(learner)
        return able
