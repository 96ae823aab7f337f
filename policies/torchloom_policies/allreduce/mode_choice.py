"""Choose a compression mode by the progress a second that it is expected to make."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torchloom_policies.allreduce.cost import CostModel, StepCost
from torchloom_policies.allreduce.mode_record import ModeRecord

_SURE, _ENOUGH = 0.7, 0.6
"""How likely a change must be better, and better by the hysteresis, to be made."""
_WORTH_TRYING = 0.3
"""A mode that never ran at this bandwidth is tried if it may be better with this probability."""
_RELEARNING_STEPS = 40
"""What a trial in vain of a mode that loses something takes: of what steps are worth in stays of
200 and of 600 (experiments/allreduce), PowerSGD lost some 80 at its beginning, top-k none."""
_STAYS_S = 60.0
"""How long a bandwidth is taken to stay that is new. One that has stayed for longer stays for as
long again: Gott, "Implications of the Copernican principle", 1993."""
_NODES = ((-2.857, 0.0113), (-1.356, 0.2221), (0.0, 0.5332), (1.356, 0.2221), (2.857, 0.0113))
"""Gauss and Hermite's, of a normal variable, and their weights."""


@dataclass(frozen=True)
class Option:
    """A mode, compared with the present one.

    Attributes
    ----------
    mode : str
        Its name.
    gain : float
        The logarithm of how much more progress a second it makes.
    hope : float
        The same where the mode's own cost is one standard deviation less than expected.
    confidence, enough : float
        Probability that it makes more progress, and so much more that it is worth a change.
    chance, surplus : float
        Probability that its own cost is such that it is worth a change, and the logarithm by which
        it is better than what a change needs, nothing where it is not, expected.
    cost : StepCost
        Of a step.
    quality : float
        Progress of a step, of one without compression.
    """

    mode: str
    gain: float
    hope: float
    confidence: float
    enough: float
    chance: float
    surplus: float
    cost: StepCost
    quality: float


class ModeChoice:
    """Compares modes by quality over seconds of a step, which is time to a loss.

    Parameters
    ----------
    hysteresis : float
        The share by which another mode must be better.
    """

    def __init__(self, model: CostModel, record: ModeRecord, hysteresis: float) -> None:
        self._model, self._record = model, record
        self._least = math.log1p(hysteresis)

    def better(self, present: str, modes: Iterable[str], now_s: float) -> Option | None:
        """Return the mode that makes most progress, if it surely makes more."""
        sure = [
            option
            for option in self._options(present, modes, now_s)
            if option.enough >= _ENOUGH and option.confidence >= _SURE
        ]
        return max(sure, key=lambda option: option.gain, default=None)

    def worth_trying(
        self, present: str, modes: Iterable[str], now_s: float, calm_s: float, is_news: bool
    ) -> Option | None:
        """Return a mode that has never run at this bandwidth and may well be better there.

        One that loses nothing is tried soon after the bandwidth has changed, or not at all there.
        One that loses something is tried when what it may gain, as long as the bandwidth stays, is
        more than what is lost by a trial in vain.

        Parameters
        ----------
        calm_s : float
            How long the bandwidth has been what it is.
        is_news : bool
            Whether that is a short time.
        """
        hopeful = [
            option
            for option in self._options(present, modes, now_s)
            if not self._model.tried_here(option.mode)
            and option.hope > self._least
            and option.chance >= _WORTH_TRYING
            and (
                is_news
                if option.quality >= 1.0
                else option.surplus * max(calm_s, _STAYS_S)
                > (1.0 - option.chance) * _RELEARNING_STEPS * option.cost.step_s
            )
        ]
        return max(hopeful, key=lambda option: option.hope, default=None)

    def at_stake(self, present: str, modes: Iterable[str], now_s: float) -> float:
        """Return what another mode would gain if the bandwidth were as far off as it may be.

        What the present one takes is measured, whatever the bandwidth.
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
                hope=gain + own_log_sd,
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
        """Yield the modes that nothing speaks against at such a bandwidth, and their quality."""
        bytes_per_s = self._model.link.bytes_per_s * math.exp(shift)
        for mode in modes:
            quality = self._record.quality(mode)
            against = self._record.spoken_against(mode, bytes_per_s, now_s)
            if mode != present and quality > 0 and not against:
                yield mode, quality

    def _worth(self, quality: float, present: str) -> float:
        return math.log(quality / self._record.quality(present))


def probability_above_zero(mean: float, sd: float) -> float:
    """Return the probability that a normal variable is above 0."""
    return 0.5 * math.erfc(-mean / max(sd, 1e-9) / math.sqrt(2.0))


def expected_above_zero(mean: float, sd: float) -> float:
    """Return what a normal variable is on average, counted as 0 where it is below."""
    density = math.exp(-0.5 * (mean / max(sd, 1e-9)) ** 2) / math.sqrt(2.0 * math.pi)
    return mean * probability_above_zero(mean, sd) + sd * density
