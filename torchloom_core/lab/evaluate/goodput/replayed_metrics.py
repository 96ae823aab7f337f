"""Replay the trace's telemetry as reports of the simulated workers on their current nodes.

The driver calls it at every tick.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.lab.evaluate.goodput.episode import Episode
from torchloom_core.lab.simulate.records import Member
from torchloom_core.lab.trace.feed.scrapes import Scrapes
from torchloom_core.lab.trace.feed.watched import watch


class ReplayedMetrics:
    """Metrics of the nodes of an episode: those that plugins read and the trace has.

    A load-dependent metric is valid only under the recorded load: the worker trains on a node that
    was busy at that time, or stands by on an idle one. Without a placement in the trace, the nodes
    that the job starts on count as busy. ``masked`` are the workers whose load-dependent metrics
    were omitted at the last tick.
    """

    def __init__(self, episode: Episode, metrics: Iterable[str]) -> None:
        bundle, watched = episode.bundle, watch(episode.bundle)
        self.metrics = tuple(sorted({*metrics} & {*bundle.metrics}))
        self.masked: frozenset[str] = frozenset()
        self._row_of = {node: row for row, node in enumerate(watched.node)}
        self._load = [
            column
            for column, metric in enumerate(self.metrics)
            if metric in bundle.manifest.load_dependent
        ]
        self.depends_on_load = bool(self._load)
        self._busy = _Busy(episode) if self._load else None
        self._scrapes = None
        if self.metrics:
            self._scrapes = Scrapes(bundle, watched, self.metrics, start_ns=episode.start_ns)

    def read(self, members: Sequence[Member], now_ns: int) -> Floats:
        """Return ``(members, metrics)``: the newest values since the last call, else NaN."""
        if self._scrapes is None:
            return np.empty((len(members), 0))
        values, _ = self._scrapes.until(np.array([now_ns], dtype=np.int64))
        rows = np.array([self._row_of[member.node] for member in members], dtype=np.intp)
        seen = values[:, 0].T[rows]
        if self._busy is not None:
            trains = np.array([m.state not in ("standby", "left", "gone") for m in members])
            moved = trains != self._busy.at(now_ns)[rows]
            seen[np.ix_(moved, self._load)] = np.nan
            self.masked = frozenset(members[i].worker for i in np.flatnonzero(moved).tolist())
        return seen


class _Busy:
    """The watched nodes that were busy in the recording, over time."""

    def __init__(self, episode: Episode) -> None:
        watched = watch(episode.bundle)
        self._always = np.zeros(len(watched.ids), dtype=np.bool_)
        spans = [
            (row, place.from_ns, 2**63 - 1 if place.until_ns is None else place.until_ns)
            for place in episode.bundle.placement()
            for row in watched.rows_of(place.component)
        ]
        if not spans:
            job = frozenset(episode.job_nodes)
            self._always = np.array([node in job for node in watched.node])
        self._spans: Ints = np.array(spans, dtype=np.int64).reshape(-1, 3)

    def at(self, now_ns: int) -> NDArray[np.bool_]:
        """Return ``(watched,)``: whether each node was busy at a time."""
        busy = self._always.copy()
        rows, from_ns, until_ns = self._spans.T
        busy[rows[(from_ns <= now_ns) & (now_ns < until_ns)]] = True
        return busy
