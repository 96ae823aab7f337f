"""Read the step, or the round of steps, that all ranks have just finished, from telemetry."""

import math
from dataclasses import dataclass

import numpy as np

from torchloom_core.plugin import FleetView, Floats, Ints, Need, grow
from torchloom_policies.allreduce.modes import prior_of

STEP, COMPUTE, WAIT = "step_time_s", "compute_s", "wait_s"
SENT, CODE, WIRE = "sent_bytes", "compress_s", "wire_s"
GRADIENT, REDUCTIONS, OVERLAP = "gradient_bytes", "reductions", "overlap_s"
ROUND_STEPS, ROUND, ROUND_WAIT = "round_steps", "round_s", "round_wait_s"
_ALWAYS = (STEP, COMPUTE, WAIT, SENT, CODE, WIRE, GRADIENT, REDUCTIONS, OVERLAP)
_IN_ROUNDS = (ROUND_STEPS, ROUND, ROUND_WAIT)
NEEDS = (*map(Need, _ALWAYS), *(Need(metric, optional=True) for metric in _IN_ROUNDS))

_MOST_S = 1e6
_LEAST_STEP_S = 1e-6
_MOST_BYTES = 1e15
_MOST_STEPS = 1e9
_PATIENCE_TICKS = 3
_LEAST_WIRE_S = 2e-4
"""Shorter wire times are below the clock's resolution."""

_LEAST_BYTES = 128 * 1024
"""Fewer bytes in a collective fit into buffers, and show latency instead of bandwidth."""


@dataclass(frozen=True)
class StepSample:
    """One step of the whole run; under LocalSGD and DiLoCo one sync, and ``every`` steps before it.

    ``step_s`` and ``compute_s`` are sums over these steps: the median step time, as all wait for
    each other, and the longest computing time of any worker. ``compress_s`` is the median,
    ``wire_s`` the minimum, as the other workers also wait for the slowest; ``overlap_s`` is that of
    the worker with the shortest wire time, 0 if not reported. ``ranks`` is the number of groups,
    the bytes are of one worker, and ``reductions`` are those of the synchronisation.
    """

    now_s: float
    step: int
    mode: str
    ranks: int
    every: float
    step_s: float
    compute_s: float
    compress_s: float
    wire_s: float
    overlap_s: float
    sent_bytes: float
    gradient_bytes: float
    reductions: float

    @property
    def mean_s(self) -> float:
        """Mean seconds per step, including steps without a synchronisation."""
        return self.step_s / self.every

    @property
    def shows_wire(self) -> bool:
        """Whether its wire time is long enough to measure."""
        return self.wire_s > _LEAST_WIRE_S and self.sent_bytes > 0

    @property
    def fills_links(self) -> bool:
        """Whether its collectives send enough to show the bandwidth."""
        collectives = prior_of(self.mode).collectives * self.reductions
        return self.sent_bytes >= _LEAST_BYTES * collectives


class StepReader:
    """Returns each step that telemetry shows, once."""

    def __init__(self) -> None:
        self._seen: Ints = np.zeros(0, dtype=np.int64)
        self._waited = 0
        self._last: StepSample | None = None
        self._knob = 0
        self._old_steps = 0.0
        self._held_back = 0

    def skip(self, view: FleetView) -> None:
        """Mark the present steps as read."""
        self._seen = np.array(view.step, dtype=np.int64)
        self._waited = 0

    def read(self, view: FleetView, rows: list[int], mode: str, every: int) -> StepSample | None:
        """Return a step that was not returned before, None if there is none yet.

        A step is complete once all of ``rows`` that report have reported a new one: a rank that
        waits for a slow one does not show the wire time. A silent minority delays it for a few
        ticks only. ``every`` is the value of the knob: a round that began before a change of it is
        left out.
        """
        if every != self._knob:
            self._knob, self._old_steps = every, self._last.every if self._last else 0.0
        self._seen = grow(self._seen, len(view), -1)
        reports = _plausible(view, STEP, _MOST_S) & _plausible(view, SENT, _MOST_BYTES)
        reports &= _plausible(view, WIRE, _MOST_S)
        reports &= np.isin(np.arange(len(view)), rows)
        fresh = reports & (view.step != self._seen)  # after a rewind it is lower
        if self._last is None or self._last.mode == mode:
            self._held_back = 0
        elif self._held_back < _PATIENCE_TICKS:
            # Heartbeats differ: some workers still report the last step before the change, which
            # its bytes show. The wait is bounded, because another mode may send as many bytes.
            old = fresh & np.isclose(view.latest(SENT), self._last.sent_bytes, rtol=1e-4)
            self._seen = np.where(old, view.step, self._seen)
            fresh &= ~old
            self._held_back += bool(old.any())
        if not fresh.any():
            return None
        self._waited += 1
        is_late = self._waited >= _PATIENCE_TICKS and 2 * fresh.sum() >= reports.sum()
        if (fresh != reports).any() and not is_late:
            return None
        self._seen = np.where(fresh, view.step, self._seen)
        self._waited = 0
        groups = len({view.group[row] for row in rows})
        sample = _sample(view, np.flatnonzero(fresh), groups, mode)
        if sample is None:
            return None
        old_steps, self._old_steps = self._old_steps, 0.0
        if sample.every == old_steps:
            return None
        self._last = sample
        return sample


def _sample(view: FleetView, rows: Ints, ranks: int, mode: str) -> StepSample | None:
    steps = _among(view, ROUND_STEPS, rows, _MOST_STEPS)
    every = float(np.median(np.nan_to_num(steps)))
    if every < 1:  # most workers report no rounds
        every, steps = 1.0, np.full_like(steps, math.nan)
    each_s = _of_round(view, ROUND, STEP, rows, steps)
    step_s = _middle(each_s)
    sent = float(np.median(_among(view, SENT, rows, _MOST_BYTES)))
    wire_s = _among(view, WIRE, rows, _MOST_S)
    code_s = np.nan_to_num(_among(view, CODE, rows, _MOST_S))
    wait_s = _of_round(view, ROUND_WAIT, WAIT, rows, steps)
    overlap_s = _among(view, OVERLAP, rows, _MOST_S)
    # Concurrent reductions each add to wire_s, but not more than the time of all.
    under_way_s = np.where(np.isfinite(overlap_s), overlap_s + wait_s - code_s, math.inf)
    wire_s = np.fmin(wire_s, np.maximum(np.nan_to_num(under_way_s, nan=math.inf), 0.0))
    gradient = _middle(_among(view, GRADIENT, rows, _MOST_BYTES))
    if not gradient > 0:
        share = prior_of(mode).sent_share(ranks)
        gradient = sent / share if share > 0 else math.nan
    own_s = np.where(steps >= 1, math.nan, _among(view, COMPUTE, rows, _MOST_S))
    own_s = np.where(np.isfinite(own_s), own_s, np.maximum(each_s - wait_s, 0.0))
    own_s = own_s[np.isfinite(own_s)]
    if not (gradient >= 1 and sent >= 1 and step_s >= _LEAST_STEP_S):
        return None
    compute_s = float(own_s.max()) if len(own_s) else max(0.0, step_s - float(wire_s.min()))
    reductions = _middle(_among(view, REDUCTIONS, rows, _MOST_BYTES))
    least = int(wire_s.argmin())
    return StepSample(
        now_s=view.now_s,
        step=int(np.median(view.step[rows])),
        mode=mode,
        ranks=ranks,
        every=every,
        step_s=step_s,
        compute_s=min(compute_s, step_s),
        compress_s=float(np.median(code_s)),
        wire_s=float(wire_s[least]),
        overlap_s=float(np.nan_to_num(overlap_s[least])),
        sent_bytes=sent,
        gradient_bytes=gradient,
        reductions=reductions if reductions >= 1 else 1.0,
    )


def _plausible(
    view: FleetView, metric: str, most: float
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    values = view.latest(metric)
    return (values >= 0) & (values <= most)


def _among(view: FleetView, metric: str, rows: Ints, most: float) -> Floats:
    """Return the values of these rows, NaN where implausible."""
    return np.where(_plausible(view, metric, most), view.latest(metric), math.nan)[rows]


def _of_round(view: FleetView, metric: str, of_step: str, rows: Ints, steps: Floats) -> Floats:
    """Return the values of the round where there is one, else those of the step."""
    of_round = _among(view, metric, rows, _MOST_S)
    return np.where(steps >= 1, of_round, _among(view, of_step, rows, _MOST_S))


def _middle(values: Floats) -> float:
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else math.nan
