"""Choose a compression mode by its expected progress per second, and record bad outcomes."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torchloom_policies.allreduce.cost import CostModel, StepCost

_SURE, _ENOUGH = 0.7, 0.6
"""Required probability that a change is better, and better by the hysteresis."""
_WORTH_TRYING = 0.3
"""Required probability that a mode that never ran at this bandwidth is better, for a trial."""
_RELEARNING_STEPS = 40
"""Cost of a failed trial of a lossy mode, in steps: by stays of 200 and 600 steps
(experiments/allreduce), PowerSGD lost about 80 steps at its beginning, top-k none."""
_STAYS_S = 60.0
"""Expected duration of a new bandwidth. One that has lasted longer is expected to last as long
again: Gott, "Implications of the Copernican principle", 1993."""
_NODES = ((-2.857, 0.0113), (-1.356, 0.2221), (0.0, 0.5332), (1.356, 0.2221), (2.857, 0.0113))
"""Gauss-Hermite nodes of a normal variable, and their weights."""

_HISTORY = 64
_LEAST_QUALITY = 1e-3
_SAME = math.log(1.5)
"""Bandwidths closer than this, as a logarithm, count as the same."""


@dataclass(frozen=True)
class Option:
    """A mode, compared with the present one.

    ``gain`` is the logarithm of the factor on progress per second, ``upper_gain`` the same if the
    mode's own cost is one standard deviation lower than expected. ``confidence`` and ``enough`` are
    the probabilities that progress is higher, and higher by enough for a change. Over the
    uncertainty of the mode's own cost alone, ``chance`` is the probability that it is worth a
    change, and ``surplus`` the expected logarithm by which it exceeds what a change needs.
    """

    mode: str
    gain: float
    upper_gain: float
    confidence: float
    enough: float
    chance: float
    surplus: float
    cost: StepCost
    quality: float


class ModeRecord:
    """The quality of each mode, and the modes and changes excluded for now.

    Quality is the steps that ``none`` needs to a loss over those that the mode needs; a rollback
    by a guard multiplies it by ``penalty``. A bad outcome excludes a mode for ``forgive_s``.
    """

    def __init__(self, quality: Mapping[str, float], forgive_s: float, penalty: float) -> None:
        self._quality = dict(quality)
        self._forgive_s, self._penalty = forgive_s, penalty
        self._hurt_s: dict[str, float] = {}
        self._slow: deque[tuple[str, float, float]] = deque(maxlen=_HISTORY)
        self._refused: deque[tuple[str, float]] = deque(maxlen=_HISTORY)

    def quality(self, mode: str) -> float:
        """Return the progress of a step relative to one without compression."""
        return self._quality.get(mode, 1.0)

    def hurt(self, mode: str, now_s: float) -> None:
        """Record that a guard has rolled the mode back."""
        self._hurt_s[mode] = now_s
        self._quality[mode] = max(_LEAST_QUALITY, self.quality(mode) * self._penalty)

    def was_slow(self, mode: str, bytes_per_s: float, now_s: float) -> None:
        """Record that the mode made less progress than the one before it, at this bandwidth."""
        self._slow.append((mode, math.log(bytes_per_s), now_s))

    def refused(self, change: str, now_s: float) -> None:
        """Record that a change of other knobs was rolled back, or measured worse."""
        self._refused.append((change, now_s))

    def was_refused(self, change: str, now_s: float) -> bool:
        """Return whether this change is excluded now."""
        since_s = now_s - self._forgive_s
        return any(one == change and when_s > since_s for one, when_s in self._refused)

    def is_excluded(self, mode: str, bytes_per_s: float, now_s: float) -> bool:
        """Return whether the mode is excluded at this bandwidth now."""
        since_s = now_s - self._forgive_s
        if self._hurt_s.get(mode, -math.inf) > since_s:
            return True
        at = math.log(bytes_per_s)
        return any(
            slow == mode and when_s > since_s and abs(at - then) < _SAME
            for slow, then, when_s in self._slow
        )


class ModeChoice:
    """Compares modes by quality over seconds of a step, which is time to a loss.

    Another mode must be better by the share ``hysteresis``.
    """

    def __init__(self, model: CostModel, record: ModeRecord, hysteresis: float) -> None:
        self._model, self._record = model, record
        self._least = math.log1p(hysteresis)

    def better(self, present: str, modes: Iterable[str], now_s: float) -> Option | None:
        """Return the mode with the highest progress, if it is confidently better."""
        sure = [
            option
            for option in self._options(present, modes, now_s)
            if option.enough >= _ENOUGH and option.confidence >= _SURE
        ]
        return max(sure, key=lambda option: option.gain, default=None)

    def worth_trying(
        self, present: str, modes: Iterable[str], now_s: float, stable_s: float, is_news: bool
    ) -> Option | None:
        """Return a mode that has never run at this bandwidth and may be better there.

        A lossless mode is tried only soon after the bandwidth has changed. A lossy mode is tried
        when its expected gain, while the bandwidth lasts, exceeds the loss of a failed trial. The
        bandwidth has been stable for ``stable_s``.
        """
        promising = [
            option
            for option in self._options(present, modes, now_s)
            if not self._model.tried_here(option.mode)
            and option.upper_gain > self._least
            and option.chance >= _WORTH_TRYING
            and (
                is_news
                if option.quality >= 1.0
                else option.surplus * max(stable_s, _STAYS_S)
                > (1.0 - option.chance) * _RELEARNING_STEPS * option.cost.step_s
            )
        ]
        return max(promising, key=lambda option: option.upper_gain, default=None)

    def at_stake(self, present: str, modes: Iterable[str], now_s: float) -> float:
        """Return the gain of the best other mode at either bound of the plausible bandwidth.

        The cost of the present mode is measured, so it does not depend on the bandwidth.
        """
        own, far, stake = self._model.cost(present), self._model.link.reach, 0.0
        modes = tuple(modes)
        for shift in (-far, far):
            for mode, quality in self._others(present, modes, now_s, shift):
                cost = self._model.cost(mode, shift=shift)
                if own is not None and cost is not None:
                    faster, _ = self._model.faster(cost, own)
                    stake = max(stake, faster + self._worth(quality, present))
        return stake if stake > self._least else 0.0

    def _options(self, present: str, modes: Iterable[str], now_s: float) -> Iterator[Option]:
        own = self._model.cost(present)
        if own is None:
            return
        for mode, quality in self._others(present, modes, now_s):
            cost = self._model.cost(mode)
            if cost is None:
                continue
            worth = self._worth(quality, present)
            gain = confidence = enough = chance = surplus = 0.0
            own_log_sd = math.hypot(own.own_log_sd, cost.own_log_sd)
            for sds, weight in _NODES:
                other = self._model.cost(mode, shift=sds * self._model.link.log_sd)
                assert other is not None
                there, log_sd = self._model.faster(other, own)
                there += worth
                gain += weight * there
                confidence += weight * probability_above_zero(there, log_sd)
                beyond = there - self._least
                enough += weight * probability_above_zero(beyond, log_sd)
                chance += weight * probability_above_zero(beyond, own_log_sd)
                surplus += weight * expected_above_zero(beyond, own_log_sd)
            yield Option(
                mode=mode,
                gain=gain,
                upper_gain=gain + own_log_sd,
                confidence=confidence,
                enough=enough,
                chance=chance,
                surplus=surplus,
                cost=cost,
                quality=quality,
            )

    def _others(
        self, present: str, modes: Iterable[str], now_s: float, shift: float = 0.0
    ) -> Iterator[tuple[str, float]]:
        """Yield the modes not excluded at this bandwidth, and their quality."""
        bytes_per_s = self._model.link.bytes_per_s * math.exp(shift)
        for mode in modes:
            quality = self._record.quality(mode)
            excluded = self._record.is_excluded(mode, bytes_per_s, now_s)
            if mode != present and quality > 0 and not excluded:
                yield mode, quality

    def _worth(self, quality: float, present: str) -> float:
        return math.log(quality / self._record.quality(present))


def probability_above_zero(mean: float, sd: float) -> float:
    """Return the probability that a normal variable is above 0."""
    return 0.5 * math.erfc(-mean / max(sd, 1e-9) / math.sqrt(2.0))


def expected_above_zero(mean: float, sd: float) -> float:
    """Return the expected value of the positive part of a normal variable."""
    density = math.exp(-0.5 * (mean / max(sd, 1e-9)) ** 2) / math.sqrt(2.0 * math.pi)
    return mean * probability_above_zero(mean, sd) + sd * density
