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

_HOPED = 0.1
_HOPED_CONFIDENCE = 0.3
_LEAST_WIRE_SHARE = 0.5


@dataclass(frozen=True)
class Wish:
    """A change that may be worth a proposal.

    Attributes
    ----------
    values : mapping
        The knobs.
    purpose : str
        See :class:`torchloom_policies.allreduce.knob_change.Change`.
    gain : float
        The logarithm of how much more progress a second is made, if it is right.
    confidence : float
        Probability that it is.
    quality : float
        The logarithm by which a step is worth more afterwards.
    why : str
        For people.
    """

    values: Settings
    purpose: Purpose
    gain: float
    confidence: float
    quality: float
    why: str


class SettingTuner:
    """What of the allreduce beside its compression may be turned."""

    def __init__(self, options: AllreduceTunerOptions, model: CostModel) -> None:
        self._options, self._model = options, model
        self._trials = SettingTrials()

    def better(self, run: TunedRun, view: FleetView) -> Wish | None:
        """Return a better ``sync_every``, twice or half the present one."""
        spec, every = run.specs.get(EVERY), run.every
        own = self._model.cost(run.mode)
        if spec is None or own is None:
            return None
        best: Wish | None = None
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
                best = Wish(
                    values={EVERY: value},
                    purpose="better",
                    gain=gain,
                    confidence=probability_above_zero(gain, log_sd),
                    quality=quality,
                    why=f"with {EVERY} = {every} a step takes {own.step_s:.3g} s on average, with "
                    f"{value} it would be {other.step_s:.3g} s",
                )
        return best

    def trial(self, run: TunedRun) -> Wish | None:
        """Return another number of pieces, or size of buckets, that is worth a trial."""
        own = self._model.cost(run.mode)
        if not self._options.concurrency or own is None:
            return None
        share = own.exposed_s / own.every / own.step_s
        found = self._trials.next_value(run.specs, run.settings, run.mode, self._model.bucket_bytes)
        if found is None or share < _LEAST_WIRE_SHARE:
            return None
        knob, value = found
        return Wish(
            values={knob: value},
            purpose="try",
            gain=_HOPED * share,
            confidence=_HOPED_CONFIDENCE,
            quality=0.0,
            why=f"{share:.0%} of a step of {run.mode} is the wire; {knob} = {value} is a trial of "
            "what has never run",
        )

    def asked(self, wish: Wish, mode: str) -> None:
        """Note what is proposed."""
        for knob, value in wish.values.items():
            self._trials.made(knob, value, mode)
