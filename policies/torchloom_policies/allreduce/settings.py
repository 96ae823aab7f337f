"""Choose how often to synchronise, and try pieces and buckets of the allreduce."""

import math
from dataclasses import dataclass

from torchloom_core.plugin import FleetView
from torchloom_policies.allreduce.cost import CostModel
from torchloom_policies.allreduce.knob_change import Purpose, Settings
from torchloom_policies.allreduce.mode_choice import probability_above_zero
from torchloom_policies.allreduce.options import AllreduceTunerOptions
from torchloom_policies.allreduce.setting_trials import SettingTrials
from torchloom_policies.allreduce.tuned_run import EVERY, TunedRun

_TRIAL_GAIN = 0.1
_TRIAL_CONFIDENCE = 0.3
_LEAST_WIRE_SHARE = 0.5


@dataclass(frozen=True)
class Candidate:
    """A change that may be worth a proposal.

    Attributes
    ----------
    values : mapping
        The knobs.
    purpose : str
        See :class:`torchloom_policies.allreduce.knob_change.Change`.
    gain : float
        Logarithm of the factor on progress per second, if the candidate is better.
    confidence : float
        Probability that it is better.
    quality : float
        Logarithm of the factor on a step's progress.
    why : str
        The reason in words.
    """

    values: Settings
    purpose: Purpose
    gain: float
    confidence: float
    quality: float
    why: str


class SettingTuner:
    """Tunes the settings of the allreduce other than its compression."""

    def __init__(self, options: AllreduceTunerOptions, model: CostModel) -> None:
        self._options, self._model = options, model
        self._trials = SettingTrials()

    def better(self, run: TunedRun, view: FleetView) -> Candidate | None:
        """Return a better ``sync_every``, twice or half the present one, if any."""
        spec, every = run.specs.get(EVERY), run.every
        own = self._model.cost(run.mode)
        if spec is None or own is None:
            return None
        best: Candidate | None = None
        for value in (2 * every, every // 2):
            low = 1 if spec.low is None else max(1.0, spec.low)
            fits = low <= value and (spec.high is None or value <= spec.high)
            other = self._model.cost(run.mode, times=value / every) if fits else None
            if other is None:
                continue
            faster, log_sd = self._model.faster(other, own)
            quality = self._options.sync_cost * math.log(every / value)
            gain = faster + quality
            if gain > max(math.log1p(self._options.hysteresis), best.gain if best else 0.0):
                best = Candidate(
                    values={EVERY: value},
                    purpose="better",
                    gain=gain,
                    confidence=probability_above_zero(gain, log_sd),
                    quality=quality,
                    why=f"with {EVERY} = {every} a step takes {own.step_s:.3g} s on average, with "
                    f"{value} it is expected to take {other.step_s:.3g} s",
                )
        return best

    def trial(self, run: TunedRun) -> Candidate | None:
        """Return another number of pieces, or size of buckets, to try."""
        own = self._model.cost(run.mode)
        if not self._options.concurrency or own is None:
            return None
        share = own.exposed_s / own.every / own.step_s
        found = self._trials.next_value(run.specs, run.settings, run.mode, self._model.bucket_bytes)
        if found is None or share < _LEAST_WIRE_SHARE:
            return None
        knob, value = found
        return Candidate(
            values={knob: value},
            purpose="try",
            gain=_TRIAL_GAIN * share,
            confidence=_TRIAL_CONFIDENCE,
            quality=0.0,
            why=f"{share:.0%} of a step of {run.mode} is wire time; {knob} = {value} is a trial of "
            "a setting that has never run",
        )

    def proposed(self, candidate: Candidate, mode: str) -> None:
        """Record a proposed candidate."""
        for knob, value in candidate.values.items():
            self._trials.made(knob, value, mode)
