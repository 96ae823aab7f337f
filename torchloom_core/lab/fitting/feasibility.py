"""Refuse or warn of a fit that takes too much memory or time, and find why one cannot learn."""

import logging
import resource
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import psutil

from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.floor.errors import PluginError
from torchloom_core.floor.suggest import listed
from torchloom_core.interface.api import Predictor
from torchloom_core.interface.needs import PredictorNeed, windows_s
from torchloom_core.lab.evaluate.forecasts.labels import Task
from torchloom_core.lab.evaluate.unmeasured import missing, names_of
from torchloom_core.lab.fitting.examples import sampled_by
from torchloom_core.lab.fitting.time_split import FitSettings, Split
from torchloom_core.lab.learning.gathered_learner import NUMBER_BYTES, FitSize, GatheredLearner
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.telemetry import codes, numbers, opened
from torchloom_core.lab.trace.feed.watched import watch

_log = logging.getLogger(__name__)

_SHARE = 0.75
"""Share of the free memory that a fit may take; the rest is for what is not estimated."""
_FORECAST_SHARE = 0.25
"""Largest share of the training time with forecasts in memory: of a fold, or the calibration."""
_GIB = 2**30
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Return the memory this process may still take, by machine, control group and limits."""
    free: list[int] = [psutil.virtual_memory().available, *_left_in_cgroups()]
    own = psutil.Process().memory_info()
    for limit, used in ((resource.RLIMIT_AS, own.vms), (resource.RLIMIT_DATA, own.rss)):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            free.append(soft - used)
    return max(0, int(min(free)))


def _left_in_cgroups() -> Iterator[int]:
    """Yield the memory left below the limit of each control group of this process."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # not on Linux
        return
    of_v2 = (line.removeprefix("0::/") for line in lines if line.startswith("0::"))
    places = [
        (_CGROUP / one, "memory.max", "memory.current")
        for path in of_v2
        for one in (Path(path), *Path(path).parents)
    ]
    places.append((_CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"))
    for folder, limit, usage in places:
        try:
            yield int((folder / limit).read_text()) - int((folder / usage).read_text())
        except (OSError, ValueError):  # no such file, or "max"
            continue


def size_of(bundle: Bundle, settings: FitSettings, plugin: Predictor) -> FitSize:
    """Return the counts of a predictor's training data, before the data are read."""
    every_s = settings.pace_s(plugin)
    length_s = (settings.until_ns - bundle.manifest.start_ns) / SECOND_NS
    task = settings.task_of(plugin.horizon_s)
    moments = max(1, int(length_s / every_s))
    counted = sum(task.counts(event) for event in bundle.events())
    return FitSize(
        components=len(watch(bundle).ids),
        moments=moments,
        values=bundle.once("telemetry rows", _telemetry_rows),
        failing=counted * min(moments, int(task.horizon_s / every_s) + 1),
        every_s=every_s,
    )


def _telemetry_rows(bundle: Bundle) -> int:
    rows = 0
    for path in bundle.parquet_files:
        with opened(path) as file:
            rows += file.metadata.num_rows
    return rows


def own_bytes(plugin: Predictor, size: FitSize) -> int:
    """Return a predictor's own estimate of its memory while learning; 0 without one."""
    estimate = getattr(plugin, "learning_bytes", None)
    return int(estimate(size)) if callable(estimate) else 0


def forecast_bytes(size: FitSize) -> int:
    """Return the memory of the forecasts of one predictor."""
    moments = int(_FORECAST_SHARE * size.moments) + 1
    return NUMBER_BYTES * moments * size.components


def windows_bytes(plugins: Sequence[Predictor], size: FitSize, tick_s: float) -> int:
    """Return the memory of the windows of all metrics in use, each value twice."""
    longest: dict[str, float] = {}
    for plugin in plugins:
        for metric, window_s in windows_s(plugin.needs).items():
            longest[metric] = max(longest.get(metric, 0.0), window_s)
    ticks = sum(int(window_s / tick_s) + 1 for window_s in longest.values())
    return 2 * NUMBER_BYTES * ticks * size.components


def refuse_without_room(
    bundle: Bundle, settings: FitSettings, plugin: Predictor, free_bytes: int
) -> None:
    """Raise PluginError if a predictor would take more memory than is free."""
    need, may_take = own_bytes(plugin, size_of(bundle, settings, plugin)), _SHARE * free_bytes
    if need > may_take:
        raise PluginError(
            f"predictor {plugin.name}: need {need / _GIB:.3g} GiB of memory to learn from "
            f"{bundle.path}, was {may_take / _GIB:.3g} GiB free for it: use a larger --every-s or "
            "fewer metrics"
        )


def without_room(
    bundle: Bundle,
    settings: FitSettings,
    built: Sequence[tuple[str, Predictor]],
    free_bytes: int,
) -> Mapping[str, str]:
    """Return the candidates that do not fit in memory beside the others, by name, with a reason.

    All candidates share the passes, so their memory adds up; equal rows are shared. The smallest
    is taken first.
    """
    may_take = int(_SHARE * free_bytes)
    sizes = {name: size_of(bundle, settings, plugin) for name, plugin in built}
    needs = {
        name: own_bytes(plugin, sizes[name]) + forecast_bytes(sizes[name]) for name, plugin in built
    }
    out: dict[str, str] = {}
    taken: list[Predictor] = []
    gathered: dict[Hashable, int] = {}
    forecasts_bytes = 0
    for name, plugin in sorted(built, key=lambda one: needs[one[0]]):
        size = sizes[name]
        key = sampled_by(plugin) if isinstance(plugin, GatheredLearner) else name
        windows = windows_bytes([*taken, plugin], size, settings.tick_s)
        rows = {**gathered, key: max(gathered.get(key, 0), own_bytes(plugin, size))}
        total = windows + sum(rows.values()) + forecasts_bytes + forecast_bytes(size)
        if total > may_take:
            out[name] = (
                f"left out: it takes up to {needs[name] / _GIB:.3g} GiB of memory, "
                f"{total / _GIB:.3g} GiB with the other candidates and their windows, of "
                f"{may_take / _GIB:.3g} GiB free"
            )
            continue
        taken.append(plugin)
        gathered, forecasts_bytes = rows, forecasts_bytes + forecast_bytes(size)
    for name, why in out.items():
        _log.warning("%s: %s", name, why)
    return out


_TIMES = 5
"""Samples of one component from which the interval is computed."""
_TABLES = 16
"""Parts of the telemetry that are read for that, at most."""
_A_HORIZON = 12
"""Forecasts per horizon that are enough without telemetry: little changes between faults."""
_OFTEN = 4.0
"""From this factor on, a shorter interval is a waste of time."""


def sample_interval_s(bundle: Bundle) -> float | None:
    """Return the interval of the first samples of one component, seconds; None if too few."""
    return bundle.once("sample interval", _sample_interval_s)


def _sample_interval_s(bundle: Bundle) -> float | None:
    component, seen = "", np.zeros(0, dtype=np.int64)
    for table in islice(bundle.telemetry(), _TABLES):
        component = component or table["component"][0].as_py()
        own = codes(table["component"], [component]) == 0
        seen = np.union1d(seen, numbers(table["t_event"])[own])
        if len(seen) >= _TIMES:
            return float(np.median(np.diff(seen[:_TIMES]))) / SECOND_NS
    return None


def warn_fine_ticks(bundle: Bundle, tick_s: float) -> None:
    """Warn of ticks that are far shorter than the sampling interval."""
    every_s = sample_interval_s(bundle)
    if every_s is not None and every_s >= _OFTEN * tick_s:
        text = (
            f"samples come every {every_s:.6g} s, ticks every {tick_s:.6g} s: --tick-s "
            f"{every_s:.6g} takes a fraction of the time"
        )
        _log.warning("%s: %s", bundle.path, text)


def warn_short_spans(
    bundle: Bundle, name: str, spans_s: Sequence[float], usual_s: Sequence[float]
) -> None:
    """Warn of a predictor whose spans are all shorter than the sampling interval."""
    every_s = sample_interval_s(bundle) if spans_s else None
    if every_s is not None and max(spans_s) < every_s:
        usual = ", ".join(f"{span_s:.10g}" for span_s in usual_s)
        text = (
            f"aggregates metrics over at most {max(spans_s):.6g} s, but samples come every "
            f"{every_s:.6g} s: use --option 'spans_s=[{usual}]'"
        )
        _log.warning("%s: predictor %s %s", bundle.path, name, text)


def warn_frequent_forecasts(
    bundle: Bundle, settings: FitSettings, name: str, plugins: Sequence[Predictor]
) -> None:
    """Warn of many forecasts per horizon by predictors that read no telemetry of the trace."""
    if any(windows_s(plugin.needs).keys() & {*bundle.metrics} for plugin in plugins):
        return
    for plugin in plugins:
        every_s, enough_s = settings.pace_s(plugin), plugin.horizon_s / _A_HORIZON
        if enough_s >= _OFTEN * every_s:
            text = (
                f"reads no telemetry, but forecasts every {every_s:.6g} s, "
                f"{plugin.horizon_s / every_s:.0f} times per horizon: --every-s {enough_s:.6g}, "
                f"{_A_HORIZON} times per horizon, takes a fraction of the time"
            )
            _log.warning("%s: predictor %s %s", bundle.path, name, text)
            return


_LISTED = 5
_DAY_NS = 86_400 * SECOND_NS


def hints(bundle: Bundle, task: Task, split: Split, needs: Sequence[PredictorNeed]) -> str:
    """Return clauses that each begin with a semicolon; "" without a known cause."""
    unseen = missing(needs, {*bundle.metrics})
    clauses = (
        f"the trace has no {names_of(unseen, bundle.metrics)}" if unseen else "",
        uncounted(bundle, task) or _away(bundle, task) or _too_late(bundle, task, split),
    )
    return "".join(f"; {clause}" for clause in clauses if clause)


def uncounted(bundle: Bundle, task: Task) -> str:
    """Return why no event of a trace counts; "" if one does."""
    events = bundle.events()
    if not events:
        return "the trace has no event"
    if any(task.counts(event) for event in events):
        return ""
    kinds = sorted({event.kind for event in events})
    return (
        f"none of its {len(events)} events is fatal: set the kinds that count with --kind, such as "
        f"{listed(kinds, most=_LISTED)}, or use --task detect"
    )


def _away(bundle: Bundle, task: Task) -> str:
    """Return that all components are away during their incidents; "" if some are not."""
    counted = [event for event in bundle.events() if task.counts(event)]
    if task.kind == "forecast" or not all(event.fatal for event in counted):
        return ""
    return (
        f"all of its {len(counted)} events are fatal, so the components are away during them and "
        "there is nothing to learn from: use --task forecast"
    )


def _too_late(bundle: Bundle, task: Task, split: Split) -> str:
    """Return that no event that counts was known during training; "" if one was."""
    counted = [event for event in bundle.events() if task.counts(event)]
    shown_ns = split.calibrated_from_ns
    first_ns = min(max(event.t_event, event.t_avail) for event in counted)
    if first_ns <= shown_ns:
        return ""
    what = f"events of {' or '.join(task.kinds)}" if task.kinds else "failures"
    return (
        f"the first of its {len(counted)} {what} became known on {_when(first_ns, split)}, but "
        f"training ends on {_when(shown_ns, split)}: set --until later than day "
        f"{_day(split.until_ns, split)}"
    )


def _when(ts_ns: int, split: Split) -> str:
    return f"{moment_text(ts_ns)}, day {_day(ts_ns, split)}"


def _day(ts_ns: int, split: Split) -> str:
    return f"{(ts_ns - split.start_ns) / _DAY_NS:.4g}"
