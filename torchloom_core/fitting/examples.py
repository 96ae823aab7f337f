"""The moments of a trace as a predictor learns from them: what was to be seen, and what came."""

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from torchloom_core.clock import SECOND_NS
from torchloom_core.evaluate.forecasts.hindcasts import Progress, events_to_judge
from torchloom_core.evaluate.forecasts.labels import Task, outcomes
from torchloom_core.evaluate.forecasts.leaks import suspicious_features
from torchloom_core.fitting.shared_rows import SharedRows
from torchloom_core.learning.rows import RowSample
from torchloom_core.plugin.api import Example, Predictor
from torchloom_core.plugin.arrays import Floats
from torchloom_core.plugin.foreign import is_ours
from torchloom_core.plugin.needs import labels_read, windows_s
from torchloom_core.plugin.view import FleetView
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.feed.silences import silences
from torchloom_core.trace.feed.views import views
from torchloom_core.trace.feed.watched import watch

_AT_ONCE = 256
_MAX_HEALTHY = 50_000


class Examples:
    """Iterate once over the examples from the trace's start to ``until_ns``.

    What passes is counted, and a sample of the newest values is kept to look for columns that
    know too much.

    Parameters
    ----------
    beside : SharedRows, optional
        Who sees each example too, before the predictor does.

    Attributes
    ----------
    metrics : tuple of str
        What the predictor reads.
    moments, positives : int
        Judged moments of workers so far, and those that an incident followed.
    """

    def __init__(
        self,
        bundle: Bundle,
        predictor: Predictor,
        task: Task,
        *,
        tick_s: float,
        every_s: float,
        until_ns: int,
        known_until_ns: int,
        progress: Progress,
        beside: SharedRows | None = None,
    ) -> None:
        self._bundle = bundle
        self._watched = watch(bundle)
        self._predictor = predictor
        self._task = task
        self._tick_s = tick_s
        self._every_s = every_s
        self._until_ns = until_ns
        self._known_until_ns = known_until_ns
        self._progress = progress
        self._beside = beside
        self.metrics = tuple(windows_s(predictor.needs))
        self._labels = labels_read(predictor.needs)
        self._sample = RowSample(_MAX_HEALTHY, seed=0)
        self._events = events_to_judge(bundle, self._watched, task)
        self._silences = silences(bundle, self._watched, known_until_ns=known_until_ns)
        self._known_from_ns = 0
        self._known: Floats = np.zeros((0, 0))
        self.moments = 0
        self.positives = 0

    def __iter__(self) -> Iterator[Example]:
        start_ns = self._bundle.manifest.start_ns
        row_of = {name: row for row, name in enumerate(self._watched.ids)}
        rows = np.zeros(0, dtype=np.intp)
        for view in views(
            self._bundle,
            needs=[*self._predictor.needs, *(self._beside.needs if self._beside else ())],
            tick_s=self._tick_s,
            every_s=self._every_s,
            repair_s=self._task.repair_s,
            end_ns=self._until_ns,
            shows=self._task.shows,
        ):
            if len(rows) < len(view):
                rows = np.array([row_of[worker] for worker in view.workers], dtype=np.intp)
            outcome = self._came(view.now_ns)[rows]
            self._count(view, outcome)
            example = Example(view=view, outcome=outcome)
            if self._beside:
                self._beside.add(example)
            shown = view if is_ours(self._predictor) else view.twin()
            yield replace(example, view=shown.with_labels(self._labels))
            self._progress((view.now_ns - start_ns) / (self._until_ns - start_ns))

    def _came(self, now_ns: int) -> Floats:
        """Return the outcomes at a moment, ``(watched,)``; those of many are made at once."""
        every_ns = round(self._every_s * SECOND_NS)
        at = (now_ns - self._known_from_ns) // every_ns
        if at >= len(self._known):
            self._known_from_ns, at = now_ns, 0
            self._known = outcomes(
                self._events,
                self._bundle.actions(),
                self._watched,
                now_ns + np.arange(_AT_ONCE, dtype=np.int64) * every_ns,
                self._task,
                known_until_ns=self._known_until_ns,
                span=(self._bundle.manifest.start_ns, self._bundle.manifest.end_ns),
                topology=self._bundle.topology(),
                silences=self._silences,
            )
        came: Floats = self._known[at]
        return came

    def _count(self, view: FleetView, outcome: Floats) -> None:
        self.moments += int(np.count_nonzero(~np.isnan(outcome)))
        self.positives += int(np.count_nonzero(outcome == 1.0))
        if self.metrics:
            newest = np.column_stack([view.latest(metric) for metric in self.metrics])
            self._sample.add(view.now_ns, newest, outcome)

    @property
    def prevalence(self) -> float:
        """The share of the judged moments so far that an incident followed; 0 of none."""
        return self.positives / self.moments if self.moments else 0.0

    def flags(self) -> tuple[str, ...]:
        """Return a flag for each metric whose newest value alone tells the failures apart."""
        if not self.metrics or not 0 < self.positives < self.moments:
            return ()
        kept = self._sample.rows(self._predictor.name)
        return suspicious_features(kept.features, kept.failed, self.metrics)
