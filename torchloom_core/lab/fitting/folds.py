"""Split the training time into folds, and score candidates on each.

Each fold is the trace as it was known at its end: a candidate is fitted on the earlier part and
scored on the rest. It is not calibrated, as calibration does not change AUPRC.
"""

from collections.abc import Iterator, Mapping, Sequence

from torchloom_core.floor.errors import ConfigError, PluginError, TraceError
from torchloom_core.interface.api import Predictor
from torchloom_core.lab.evaluate.forecasts.backtest_forecasts import (
    BacktestForecasts,
    Progress,
    judge,
    part_of,
)
from torchloom_core.lab.evaluate.forecasts.scores import auprc_of
from torchloom_core.lab.fitting.build import build
from torchloom_core.lab.fitting.candidates import Candidate
from torchloom_core.lab.fitting.earlier_part import EarlierPart
from torchloom_core.lab.fitting.passes import Passes
from torchloom_core.lab.fitting.stages import FitSettings, Fitting
from torchloom_core.lab.trace.bundle.bundle import Bundle

_CUTS, _WIDTH = (0.4, 0.6, 0.8), 0.2
"""Start of each fold's scored part, and its length, as shares of the time."""


def folds(bundle: Bundle, settings: FitSettings) -> Iterator[tuple[Bundle, int]]:
    """Yield the trace up to each fold's end, and the start of its scored part."""
    start_ns = bundle.manifest.start_ns
    length_ns = settings.until_ns - start_ns
    for cut in _CUTS:
        end_ns = start_ns + round((cut + _WIDTH) * length_ns)
        yield EarlierPart(bundle, end_ns), start_ns + round(cut * length_ns)


def judged_on(
    part: Bundle, among: Sequence[Candidate], settings: FitSettings, progress: Progress
) -> list[float | str | None]:
    """Return the AUPRC of each candidate on a fold, or why it has none.

    It is None if the fold has no failure. Candidates with the same forecast interval share two
    passes.
    """
    found: list[float | str | None] = [None] * len(among)
    paces: dict[float, tuple[Fitting, dict[int, Predictor]]] = {}
    for number, candidate in enumerate(among):
        try:
            plugin, _ = build(
                part, candidate.info, candidate.options, tick_s=settings.tick_s, source="--option"
            )
            fitting = Fitting(part, settings, plugin)
        except (ConfigError, PluginError, TraceError) as error:
            found[number] = str(error).removeprefix(f"{part.path}: ")
        else:
            paces.setdefault(fitting.every_s, (fitting, {}))[1][number] = plugin
    for at, (fitting, plugins) in enumerate(paces.values()):
        for number, one in _reached(fitting, plugins, part_of(progress, at, len(paces))).items():
            found[number] = one
    return found


def _reached(
    fitting: Fitting, plugins: Mapping[int, Predictor], progress: Progress
) -> dict[int, float | str | None]:
    """Return the AUPRC of each predictor on a fold, or why it has none."""

    def stages(name: str) -> Progress:
        done = {"pass": 0, "learn": 1, "forecast": 2}.get(name.split()[0])
        return part_of(progress, done, 3) if done is not None else lambda _: None

    passes = Passes(fitting, list(plugins.values()), stages)
    passes.learn()
    forecasts = passes.forecast()
    return {
        number: _auprc(fitting, forecasts[at]) if at in forecasts else str(passes.refused[at])
        for at, number in enumerate(plugins)
    }


def _auprc(fitting: Fitting, forecasts: BacktestForecasts) -> float | None:
    judged = judge(fitting.bundle, forecasts, fitting.task)
    return auprc_of(judged).value if (judged.outcome == 1.0).any() else None
