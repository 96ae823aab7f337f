"""Sampling of telemetry: intervals, gaps and missing samples, in constant memory."""

from collections import Counter
from collections.abc import Mapping

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.telemetry import codes, numbers

_NEVER = np.iinfo(np.int64).min

Ints = NDArray[np.int64]


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling of one metric by the ``components`` that reported it.

    ``interval_s`` is the median and ``longest_gap_s`` the longest time between two valid samples of
    a component. ``missing`` is the share of missing samples, relative to one valid sample per
    interval from every component that reports the metric, while in service.
    """

    components: int
    samples: int
    invalid: int
    interval_s: float | None
    missing: float | None
    longest_gap_s: float | None


def sampling(bundle: Bundle, there_s: Mapping[str, float]) -> dict[str, Sampling]:
    """Return the sampling of each metric, for components that were there that many seconds."""
    series = _Series(bundle.measured, bundle.metrics)
    for table in bundle.telemetry():
        series.take(table)
    span_s = (bundle.manifest.end_ns - bundle.manifest.start_ns) / SECOND_NS
    length_s = np.array([there_s.get(name, span_s) for name in bundle.measured])
    return {name: series.sampling(at, length_s) for at, name in enumerate(bundle.metrics)}


class _Series:
    """Counts, gaps and last times of each series, ``(components, metrics)``."""

    def __init__(self, components: tuple[str, ...], metrics: tuple[str, ...]) -> None:
        self._components, self._metrics = components, metrics
        shape = (len(components), len(metrics))
        self._samples = np.zeros(shape, dtype=np.int64)
        self._valid = np.zeros(shape, dtype=np.int64)
        self._last_ns = np.full(shape, _NEVER)
        self._gap_ns = np.zeros(shape, dtype=np.int64)
        self._gaps: list[Counter[float]] = [Counter() for _ in metrics]

    def take(self, table: pa.Table) -> None:
        """Add rows, in the order of arrival."""
        columns = len(self._metrics)
        component = codes(table["component"], self._components)
        place = component * columns + codes(table["metric"], self._metrics)
        valid = numbers(table["valid"])
        size = self._samples.size
        self._samples += np.bincount(place, minlength=size).reshape(-1, columns)
        self._valid += np.bincount(place[valid], minlength=size).reshape(-1, columns)
        self._take_gaps(place[valid], numbers(table["t_event"])[valid])

    def _take_gaps(self, place: Ints, t_event: Ints) -> None:
        if not len(place):
            return
        order = np.lexsort((t_event, place))
        place, t_event = place[order], t_event[order]
        is_first = np.concatenate([[True], place[1:] != place[:-1]])
        is_last = np.concatenate([is_first[1:], [True]])
        last_ns = self._last_ns.ravel()
        before = np.concatenate([[0], t_event[:-1]])
        before[is_first] = last_ns[place[is_first]]
        has_gap = before != _NEVER
        gap, where = (t_event - before)[has_gap], place[has_gap]
        np.maximum.at(self._gap_ns.reshape(-1), where, gap)
        last_ns[place[is_last]] = np.maximum(last_ns[place[is_last]], t_event[is_last])
        columns = len(self._metrics)
        for metric in np.unique(where % columns):
            lengths, counts = np.unique(gap[where % columns == metric], return_counts=True)
            for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
                # Three digits limit the number of distinct gaps.
                self._gaps[metric][float(f"{length / SECOND_NS:.3g}")] += count

    def sampling(self, metric: int, there_s: NDArray[np.float64]) -> Sampling:
        """Return the sampling of one metric; ``there_s`` has shape ``(components,)``."""
        samples, valid = self._samples[:, metric], self._valid[:, metric]
        reports = samples > 0
        interval_s = _median(self._gaps[metric])
        wanted = there_s[reports].sum() / interval_s if interval_s else 0.0
        longest_ns = int(self._gap_ns[:, metric].max(initial=0))
        return Sampling(
            components=int(reports.sum()),
            samples=int(samples.sum()),
            invalid=int(samples.sum() - valid.sum()),
            interval_s=interval_s,
            missing=max(0.0, 1.0 - float(valid.sum() / wanted)) if wanted else None,
            longest_gap_s=longest_ns / SECOND_NS if longest_ns else None,
        )


def _median(counts: Counter[float]) -> float | None:
    half = (counts.total() + 1) // 2
    for value in sorted(counts):
        half -= counts[value]
        if half <= 0 and value > 0:
            return value
    return None
