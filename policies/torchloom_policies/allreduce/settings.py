"""Choose how often to synchronise, and try pieces and buckets, which have no cost model."""

import math
from dataclasses import dataclass

from torchloom_core.plugin import FleetView, KnobSpec
from torchloom_policies.allreduce.cost import CostModel
from torchloom_policies.allreduce.knob_change import Purpose, Settings
from torchloom_policies.allreduce.mode_choice import probability_above_zero
from torchloom_policies.allreduce.modes import AllreduceTunerOptions
from torchloom_policies.allreduce.tuned_run import BUCKET, EVERY, PIECES, TunedRun

_TRIAL_GAIN = 0.1
_TRIAL_CONFIDENCE = 0.3
_LEAST_WIRE_SHARE = 0.5
_LEAST_BUCKET = 1 << 20
_MOST_BUCKET = 1 << 28


@dataclass(frozen=True)
class Candidate:
    """A change of knobs that may be worth a proposal; ``why`` is the reason in words.

    ``gain`` is the logarithm of the factor on progress per second if it is better, and ``quality``
    that on a step's progress.
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
        self._tried: dict[tuple[str, str], set[int]] = {}

    def better(self, run: TunedRun, view: FleetView) -> Candidate | None:
        """Return a better ``sync_every``, twice or half the present one, if any."""
        spec, every = run.specs.get(EVERY), run.every
        own = self._model.cost(run.mode)
        if spec is None or own is None:
            return None
        best: Candidate | None = None
        for value in (2 * every, every // 2):
            fits = _takes(spec, value)
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
        """Return another number of pieces, or size of buckets, to try.

        Hill climbing: double a number, or halve it, until neither measures better. Each value is
        tried once in each compression mode.
        """
        own = self._model.cost(run.mode)
        if not self._options.concurrency or own is None:
            return None
        share = own.exposed_s / own.every / own.step_s
        found = self._untried(run, self._model.bucket_bytes)
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
            if isinstance(value, int):
                self._tried.setdefault((knob, mode), set()).add(value)

    def _untried(self, run: TunedRun, largest_bytes: float) -> tuple[str, int] | None:
        for knob in (PIECES, BUCKET):
            present, spec = run.settings.get(knob), run.specs.get(knob)
            if spec is None or isinstance(present, bool) or not isinstance(present, int):
                continue
            tried = self._tried.setdefault((knob, run.mode), set())
            tried.add(present)
            for value in _next_to(knob, present, largest_bytes):
                if value not in tried and _takes(spec, value):
                    return knob, value
        return None


def _next_to(knob: str, present: int, largest_bytes: float) -> tuple[int, ...]:
    if knob == PIECES:
        return (2 * present, present // 2)
    if present:
        whole = present >= largest_bytes  # a larger bucket changes nothing
        return (present // 2,) if whole else (present // 2, 2 * present)
    half = 1 << max(0, int(largest_bytes / 2).bit_length() - 1)
    return (min(max(half, _LEAST_BUCKET), _MOST_BUCKET),) if largest_bytes > _LEAST_BUCKET else ()


def _takes(spec: KnobSpec, value: int) -> bool:
    low = 1 if spec.low is None else max(1.0, spec.low)
    low = max(low, _LEAST_BUCKET) if spec.name == BUCKET else low
    return low <= value and (spec.high is None or value <= spec.high)
