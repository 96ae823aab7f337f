"""Follow one change of run-fenced knobs, and the metric that guards it."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from torchloom_core.plugin import FleetView, Guard, KnobValue
from torchloom_policies.allreduce.modes import AllreduceTunerOptions
from torchloom_policies.allreduce.step_samples import StepSample

_RECENT = 15
_LEAST_SAMPLES = 2
_LEAST_NOISE = 0.02
_SURE = 2.0
_NEWS_STEPS = 30
_LAND_STEPS, _LAND_S = 4, 10.0
_ROLLBACK_WINDOWS = 1.5
"""A guard decides after one window, and its rollback is applied within ten steps, or one window."""
_HISTORY = 8
_ENOUGH_VALUES = 6
"""Values before a change: the guard needs five, and the oldest may have left the window by then."""
_WINDOW_STEPS = 10
"""Minimum length of a window, in steps: each gives one value."""
_LONGEST_WINDOW_S = 3600.0
_LARGEST_VALUE = 1e100
_SILENT_S = 60.0

Purpose = Literal["better", "try", "back"]
Settings = Mapping[str, KnobValue]


@dataclass
class Change:
    """A change of knobs: ``better`` by the model, to ``try``, or ``back`` from a worse one.

    ``quality`` is the logarithm of the factor on a step's progress. ``step_s`` and ``after_s`` are
    the seconds of the last steps before, and of those after it was applied, of which
    ``settle_steps`` are measured. They are ``comparable`` if the bandwidth is unchanged since.
    """

    values: Settings
    before: Settings
    purpose: Purpose
    proposed_s: float
    quality: float
    settle_steps: int
    step_s: list[float]
    landed_s: float = math.nan
    landed_step: int = -1
    after_s: list[float] = field(default_factory=list)
    comparable: bool = True


@dataclass(frozen=True)
class Measured:
    """The measured effect of a change on progress, as a logarithm, and its standard error."""

    change: Change
    gain: float
    noise: float

    @property
    def worse(self) -> bool:
        """Whether progress fell by more than the noise."""
        return self.gain < -_SURE * self.noise

    @property
    def better(self) -> bool:
        """Whether progress rose by more than one standard error."""
        return self.gain > self.noise


class ChangeTracker:
    """At most one change at a time: ``proposed`` and not applied yet, or ``settling``: measured.

    ``just_landed`` is whether the last call of :meth:`look` saw it applied.
    """

    def __init__(self, settle_steps: int) -> None:
        self._settle_steps = settle_steps
        self._recent_s: deque[float] = deque(maxlen=_RECENT)
        self._landed: deque[Change] = deque(maxlen=_HISTORY)
        self._settings: dict[str, KnobValue] = {}
        self.proposed: Change | None = None
        self.settling: Change | None = None
        self.just_landed = False
        self._stable, self._stable_from_s = 0, math.nan

    @property
    def is_news(self) -> bool:
        """Whether the bandwidth is new; later, noise alone must not start a trial."""
        return self._stable <= _NEWS_STEPS

    def stable_s(self, now_s: float) -> float:
        """Return for how long the bandwidth has been stable, seconds; 0 before the first step."""
        return now_s - self._stable_from_s if self._stable else 0.0

    @property
    def well_measured(self) -> bool:
        """Whether enough steps with the present settings were measured."""
        return len(self._recent_s) >= max(self._settle_steps, _LEAST_SAMPLES)

    def propose(
        self, values: Settings, purpose: Purpose, quality: float, now_s: float, times: int = 1
    ) -> None:
        """Record a proposal; ``quality`` is the logarithm of the factor on a step's progress.

        It is measured over ``times`` x ``settle_steps`` steps.
        """
        before = {knob: self._settings[knob] for knob in values}
        steps, recent_s = times * self._settle_steps, list(self._recent_s)
        self.proposed = Change(values, before, purpose, now_s, quality, steps, recent_s)
        self.settling = None

    def look(
        self, settings: Settings, step: int, now_s: float, step_s: float, watched_s: float
    ) -> Change | None:
        """Compare with the present knobs; return a change of the tuner that was rolled back.

        A guard also rolls back changes made during its window, so the knobs may return to their
        values before any of the last changes. Any other value, set by a person for instance, ends
        the change without a judgement of it. ``watched_s`` is the length of a guard's window.
        """
        before, self._settings, self.just_landed = self._settings, dict(settings), False
        if self.proposed is not None and _matches(self.proposed.values, settings):
            self.settling = self.proposed
            self._landed.append(self.proposed)
            self.proposed, self.just_landed = None, True
            self.settling.landed_s, self.settling.landed_step = now_s, step
            self._recent_s.clear()
            return None
        wait_s = max(_LAND_S, _LAND_STEPS * step_s)
        if self.proposed is not None and now_s - self.proposed.proposed_s > wait_s:
            self.proposed = None
        if not before or before == settings:
            return None
        self._recent_s.clear()
        self.proposed = self.settling = None
        since_s = now_s - _ROLLBACK_WINDOWS * watched_s
        watched = [change for change in self._landed if change.landed_s >= since_s]
        self._landed.clear()
        if not watched or watched[-1].purpose == "back" or _matches(watched[-1].values, settings):
            return None
        is_back = any(_matches(change.before, settings) for change in watched)
        return watched[-1] if is_back else None

    def jumped(self) -> None:
        """Record a jump of the bandwidth: earlier steps are no longer comparable."""
        self._recent_s.clear()
        self._stable, self._stable_from_s = 0, math.nan
        if self.settling is not None:
            self.settling.comparable = False
            self.settling.after_s.clear()
        if self.proposed is not None:
            self.proposed.comparable = False

    def measure(self, sample: StepSample, jumped: bool) -> Measured | None:
        """Take a step; return the effect of the change once enough steps were measured."""
        change = self.settling
        if jumped:
            self.jumped()
        self._stable += 1
        self._stable_from_s = sample.now_s if self._stable == 1 else self._stable_from_s
        self._recent_s.append(sample.mean_s)
        if change is None:
            return None
        change.after_s.append(sample.mean_s)
        if sample.step < change.landed_step:  # the run was rewound meanwhile
            change.landed_step, change.comparable = sample.step, False
        # Ticks sample quick steps; a round that had already begun is left out.
        steps = len(change.after_s) if sample.every > 1 else sample.step - change.landed_step
        if steps < change.settle_steps or len(change.after_s) < _LEAST_SAMPLES:
            return None
        self.settling = None
        if not change.comparable or len(change.step_s) < _LEAST_SAMPLES:
            return None
        before, noise_before = _level(change.step_s)
        after, noise_after = _level(change.after_s)
        noise = max(_LEAST_NOISE, math.hypot(noise_before, noise_after))
        return Measured(change, change.quality + before - after, noise)


class GuardMetric:
    """Counts the ticks with a value of the metric, as the guard does, and builds the guard.

    ``window_s`` is the length of the windows before and after a change.
    """

    def __init__(self, options: AllreduceTunerOptions) -> None:
        self._options = options
        self._seen_s: deque[float] = deque(maxlen=1000)
        self._last_s = math.nan
        self.window_s = options.guard_window_s

    def look(self, view: FleetView, rows: list[int], step_s: float) -> None:
        """Record whether it is reported; ``step_s`` is how long a step takes."""
        least_s = _WINDOW_STEPS * max(step_s, view.tick_s)
        self.window_s = max(
            self._options.guard_window_s, min(math.ceil(least_s), _LONGEST_WINDOW_S)
        )
        values = view.window(self._options.guard_metric, view.tick_s)[rows, -1]
        values = values[~np.isnan(values)]
        seen = len(values) > 0 and abs(float(np.median(values))) < _LARGEST_VALUE
        if seen:
            self._seen_s.append(view.now_s)
        if seen or math.isnan(self._last_s):
            self._last_s = view.now_s
        while self._seen_s and not 0.0 <= view.now_s - self._seen_s[0] < self.window_s:
            self._seen_s.popleft()

    def trouble(self, now_s: float) -> str:
        """Return the alert text if no worker reports the metric, or nothing."""
        if now_s - self._last_s <= max(_SILENT_S, self.window_s):
            return ""
        return (
            "only lossless modes are proposed: need a worker that reports the guard_metric "
            f"{self._options.guard_metric}, none has for a minute"
        )

    @property
    def is_sufficient(self) -> bool:
        """Whether the guard would detect a harmful change."""
        return len(self._seen_s) >= _ENOUGH_VALUES

    @property
    def guard(self) -> Guard | None:
        """The guard of a change, None if no worker reports the metric."""
        if not self._seen_s:
            return None
        options = self._options
        return Guard(metric=options.guard_metric, band=options.guard_band, window_s=self.window_s)


def _matches(values: Settings, settings: Settings) -> bool:
    return all(settings.get(knob) == value for knob, value in values.items())


def _level(step_s: list[float]) -> tuple[float, float]:
    """Return the median logarithm of some steps, and its standard error."""
    logs = np.log(step_s)
    middle = float(np.median(logs))
    spread = 1.48 * float(np.median(np.abs(logs - middle)))
    return middle, 1.25 * max(spread, _LEAST_NOISE) / math.sqrt(len(logs))
