"""Follow one change of run-fenced knobs: proposed, applied, measured, or rolled back."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from torchloom_core.plugin import KnobValue
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

Purpose = Literal["better", "try", "back"]
Settings = Mapping[str, KnobValue]


@dataclass
class Change:
    """A change of knobs.

    Attributes
    ----------
    values, before : mapping
        The new and the earlier values of the knobs.
    purpose : str
        ``better`` by the model, ``try`` to measure, ``back`` to the values before a worse change.
    quality : float
        Logarithm of the factor on a step's progress.
    settle_steps : int
        Number of steps to measure.
    step_s, after_s : list of float
        Seconds of the last steps before, and of those after it was applied.
    comparable : bool
        Whether the bandwidth is unchanged since.
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
    """At most one change at a time, from the proposal until it has been measured.

    Attributes
    ----------
    proposed : Change, optional
        A change that was proposed and not applied yet.
    settling : Change, optional
        A change that was applied and is being measured.
    just_landed : bool
        Whether the last call of :meth:`look` saw it applied.
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
        the change without a judgement of it.

        Parameters
        ----------
        watched_s : float
            Length of a guard's window, seconds.
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


def _matches(values: Settings, settings: Settings) -> bool:
    return all(settings.get(knob) == value for knob, value in values.items())


def _level(step_s: list[float]) -> tuple[float, float]:
    """Return the median logarithm of some steps, and its standard error."""
    logs = np.log(step_s)
    middle = float(np.median(logs))
    spread = 1.48 * float(np.median(np.abs(logs - middle)))
    return middle, 1.25 * max(spread, _LEAST_NOISE) / math.sqrt(len(logs))
