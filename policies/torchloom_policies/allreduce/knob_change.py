"""Follow one change of run-fenced knobs: asked for, landed, measured; or taken back by others."""

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
"""A guard judges after one, and what it takes back lands within ten steps, as one has at least."""
_KEPT = 8

Purpose = Literal["better", "try", "back"]
Settings = Mapping[str, KnobValue]


@dataclass
class Change:
    """A change of knobs.

    Attributes
    ----------
    values, before : mapping
        The knobs, and what they were.
    purpose : str
        ``better`` by the model, ``try`` to learn, ``back`` to what was before a worse one.
    quality : float
        The logarithm by which a step is worth more afterwards.
    settle_steps : int
        How many steps are measured before it is judged.
    step_s, after_s : list of float
        Seconds of the last steps before, and of those after it has landed.
    comparable : bool
        Whether the bandwidth has not jumped since.
    """

    values: Settings
    before: Settings
    purpose: Purpose
    asked_s: float
    quality: float
    settle_steps: int
    step_s: list[float]
    landed_s: float = math.nan
    landed_step: int = -1
    after_s: list[float] = field(default_factory=list)
    comparable: bool = True


@dataclass(frozen=True)
class Measured:
    """What a change did to the progress: its logarithm, and that one's standard error."""

    change: Change
    gain: float
    noise: float

    @property
    def worse(self) -> bool:
        """Whether less progress is made, by more than the noise."""
        return self.gain < -_SURE * self.noise

    @property
    def better(self) -> bool:
        """Whether more progress is made, by more than one standard error."""
        return self.gain > self.noise


class ChangeTracker:
    """At most one change at a time, from the proposal until it has been measured.

    Attributes
    ----------
    asked : Change, optional
        What was proposed and has not landed yet.
    settling : Change, optional
        What has landed and is being measured.
    just_landed : bool
        Whether that was seen at the last look.
    """

    def __init__(self, settle_steps: int) -> None:
        self._settle_steps = settle_steps
        self._recent_s: deque[float] = deque(maxlen=_RECENT)
        self._landed: deque[Change] = deque(maxlen=_KEPT)
        self._settings: dict[str, KnobValue] = {}
        self.asked: Change | None = None
        self.settling: Change | None = None
        self.just_landed = False
        self._calm, self._calm_from_s = 0, math.nan

    @property
    def is_news(self) -> bool:
        """Whether the bandwidth is new: what was not worth a trial then is not so by noise now."""
        return self._calm <= _NEWS_STEPS

    def calm_s(self, now_s: float) -> float:
        """Return since when steps were measured at today's bandwidth, 0 before the first."""
        return now_s - self._calm_from_s if self._calm else 0.0

    @property
    def well_measured(self) -> bool:
        """Whether as many steps of the present settings were seen as after a change."""
        return len(self._recent_s) >= max(self._settle_steps, _LEAST_SAMPLES)

    def ask(
        self, values: Settings, purpose: Purpose, quality: float, now_s: float, times: int = 1
    ) -> None:
        """Note what is proposed; ``quality`` is the logarithm by which a step is worth more.

        It is judged after ``times`` as many steps as a change settles in.
        """
        before = {knob: self._settings[knob] for knob in values}
        steps, recent_s = times * self._settle_steps, list(self._recent_s)
        self.asked = Change(values, before, purpose, now_s, quality, steps, recent_s)
        self.settling = None

    def look(
        self, settings: Settings, step: int, now_s: float, step_s: float, watched_s: float
    ) -> Change | None:
        """See what the knobs are; return a change of ours that somebody has taken back.

        A guard takes back what was changed while it still watched, too, so the knobs may be what
        they were before any of the last changes. Whoever makes something else of them, a person
        say, ends what was under way, and has said nothing of what was left.

        Parameters
        ----------
        watched_s : float
            How long a guard watches over a change.
        """
        before, self._settings, self.just_landed = self._settings, dict(settings), False
        if self.asked is not None and _holds(self.asked.values, settings):
            self.settling = self.asked
            self._landed.append(self.asked)
            self.asked, self.just_landed = None, True
            self.settling.landed_s, self.settling.landed_step = now_s, step
            self._recent_s.clear()
            return None
        wait_s = max(_LAND_S, _LAND_STEPS * step_s)
        if self.asked is not None and now_s - self.asked.asked_s > wait_s:
            self.asked = None
        if not before or before == settings:
            return None
        self._recent_s.clear()
        self.asked = self.settling = None
        since_s = now_s - _ROLLBACK_WINDOWS * watched_s
        watched = [change for change in self._landed if change.landed_s >= since_s]
        self._landed.clear()
        if not watched or watched[-1].purpose == "back" or _holds(watched[-1].values, settings):
            return None
        is_back = any(_holds(change.before, settings) for change in watched)
        return watched[-1] if is_back else None

    def jumped(self) -> None:
        """Note that the bandwidth is another: what was before compares with nothing now."""
        self._recent_s.clear()
        self._calm, self._calm_from_s = 0, math.nan
        if self.settling is not None:
            self.settling.comparable = False
            self.settling.after_s.clear()
        if self.asked is not None:
            self.asked.comparable = False

    def measure(self, sample: StepSample, jumped: bool) -> Measured | None:
        """Take a step; return what the change did once enough steps were measured."""
        change = self.settling
        if jumped:
            self.jumped()
        self._calm += 1
        self._calm_from_s = sample.now_s if self._calm == 1 else self._calm_from_s
        self._recent_s.append(sample.mean_s)
        if change is None:
            return None
        change.after_s.append(sample.mean_s)
        if sample.step < change.landed_step:  # the run was set back meanwhile
            change.landed_step, change.comparable = sample.step, False
        # Ticks see some of many quick steps; of rounds the one that had begun is left out.
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


def _holds(values: Settings, settings: Settings) -> bool:
    return all(settings.get(knob) == value for knob, value in values.items())


def _level(step_s: list[float]) -> tuple[float, float]:
    """Return the median logarithm of some steps, and its standard error."""
    logs = np.log(step_s)
    middle = float(np.median(logs))
    spread = 1.48 * float(np.median(np.abs(logs - middle)))
    return middle, 1.25 * max(spread, _LEAST_NOISE) / math.sqrt(len(logs))
