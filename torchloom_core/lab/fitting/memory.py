"""Estimate the memory that the candidates of a fit take, and leave out those that do not fit."""

import logging
import resource
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import PluginError
from torchloom_core.interface.api import Predictor
from torchloom_core.interface.needs import windows_s
from torchloom_core.lab.fitting.shared_rows import sampled_by
from torchloom_core.lab.fitting.stages import FitSettings
from torchloom_core.lab.learning.fit_size import NUMBER_BYTES, FitSize
from torchloom_core.lab.learning.gathered_learner import GatheredLearner
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.telemetry import opened
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

    Parameters
    ----------
    built : sequence of (str, Predictor)
        The candidates, each with its name.
    free_bytes : int
        As returned by :func:`available_bytes`.
    """
    may_take = int(_SHARE * free_bytes)
    needs: list[tuple[int, str, Predictor, Hashable]] = []
    for name, plugin in built:
        size = size_of(bundle, settings, plugin)
        key = sampled_by(plugin) if isinstance(plugin, GatheredLearner) else name
        needs.append((own_bytes(plugin, size) + forecast_bytes(size), name, plugin, key))
    out: dict[str, str] = {}
    taken: list[Predictor] = []
    gathered: dict[Hashable, int] = {}
    forecasts_bytes = 0
    for need, name, plugin, key in sorted(needs, key=lambda one: one[0]):
        size = size_of(bundle, settings, plugin)
        windows = windows_bytes([*taken, plugin], size, settings.tick_s)
        rows = {**gathered, key: max(gathered.get(key, 0), own_bytes(plugin, size))}
        total = windows + sum(rows.values()) + forecasts_bytes + forecast_bytes(size)
        if total > may_take:
            out[name] = (
                f"left out: it takes up to {need / _GIB:.3g} GiB of memory, {total / _GIB:.3g} GiB "
                f"with the other candidates and their windows, of {may_take / _GIB:.3g} GiB free"
            )
            continue
        taken.append(plugin)
        gathered, forecasts_bytes = rows, forecasts_bytes + forecast_bytes(size)
    for name, why in out.items():
        _log.warning("%s: %s", name, why)
    return out
