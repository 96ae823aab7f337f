"""Folds of the time that is learned from, and what candidates reach on each.

Each fold is the trace as it was known at its end: a candidate is fitted and calibrated on the
earlier part of it, as it would have been then, and judged on the rest.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from torchloom_core.errors import ConfigError, PluginError, TraceError
from torchloom_core.evaluate.forecasts.hindcasts import Progress, judge
from torchloom_core.evaluate.forecasts.scores import auprc_of
from torchloom_core.fitting.build import build
from torchloom_core.fitting.candidates import Candidate
from torchloom_core.fitting.earlier_part import EarlierPart
from torchloom_core.fitting.hints import hints
from torchloom_core.fitting.shared_rows import SharedRows
from torchloom_core.fitting.stages import FitSettings, Fitting, Said, as_plugin_error
from torchloom_core.learning.row_learner import RowLearner
from torchloom_core.plugin.api import Predictor
from torchloom_core.trace.bundle.bundle import Bundle

_CUTS, _WIDTH = (0.4, 0.6, 0.8), 0.2
"""Where the scored part of each fold begins, and how long it is, as shares of the time."""


def folds(bundle: Bundle, settings: FitSettings) -> Iterator[tuple[Bundle, int]]:
    """Yield the trace up to each fold's end, and where its scored part begins."""
    start_ns = bundle.manifest.start_ns
    length_ns = settings.until_ns - start_ns
    for cut in _CUTS:
        end_ns = start_ns + round((cut + _WIDTH) * length_ns)
        yield EarlierPart(bundle, end_ns), start_ns + round(cut * length_ns)


def judged_on(
    part: Bundle, among: Sequence[Candidate], settings: FitSettings, progress: Progress
) -> list[float | str | None]:
    """Return the AUPRC of each candidate on a fold, or why it has none.

    It is None where no failure is in the fold. Those that are asked as often share two passes.
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
        told = _told_of_all(fitting, plugins, part_of(progress, at, len(paces)))
        for number, said in told.items():
            found[number] = said if isinstance(said, str) else _auprc(fitting, said)
    return found


def part_of(progress: Progress, at: int, parts: int) -> Progress:
    """Return what is told how much of one of several parts alike is done."""
    return lambda share: progress((at + share) / parts)


def _told_of_all(
    fitting: Fitting, plugins: Mapping[int, Predictor], progress: Progress
) -> dict[int, Said | str]:
    """Return what each predictor says of a fold once it has learned, or why it cannot."""
    rows = SharedRows(one for one in plugins.values() if isinstance(one, RowLearner))
    examples = fitting.examples(next(iter(plugins.values())), part_of(progress, 0, 2), rows)
    deque(examples, maxlen=0)
    able: dict[int, Predictor] = {}
    told: dict[int, Said | str] = {}
    for number, plugin in plugins.items():
        try:
            with as_plugin_error(plugin):
                if isinstance(plugin, RowLearner):
                    rows.teach(plugin)
                else:
                    fitting.teach(plugin, lambda _: None)
        except PluginError as error:
            hint = hints(fitting.bundle, fitting.task, fitting.split, plugin.needs)
            told[number] = f"{error}{hint}"
        else:
            able[number] = plugin

    if able:
        asked = fitting.ask(list(able.values()), examples.prevalence, part_of(progress, 1, 2))
        for number, said in zip(able, asked, strict=True):
            told[number] = str(said) if isinstance(said, PluginError) else said
    return told


def _auprc(fitting: Fitting, said: Said) -> float | None:
    later = said.hindcasts.between(fitting.split.until_ns, fitting.split.end_ns)
    judged = judge(fitting.bundle, later, fitting.task)
    return auprc_of(judged).value if (judged.outcome == 1.0).any() else None
