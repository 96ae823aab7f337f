"""Say whether a predictor has skill to act on, and in one plain sentence what is missing if not.

A model's card, the report of a replay and the refusal of a policy that wants skill ask here.
"""

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from torchloom_core.learning.forecast_score import (
    FEW,
    FORETELLING,
    POINT_ADJUSTED,
    SUSPICIOUS_FEATURE,
    SUSPICIOUS_SCORE,
    TEST_TUNED_THRESHOLD,
    ForecastScore,
    Interval,
)

RANDOM = "random"
BASELINES = ("fault_history", "one_rule", "logistic")
"""Predictors that any other has to beat, by name."""
ROW_RULE = "row_rule"
DETECTORS = ("seasonal_residual", ROW_RULE)
"""What a detection has to beat as well: two that learn from no label."""

_CLEAR = 0.1
"""A difference in AUPRC is clear above this share of the prevalence, a random score's AUPRC.

What is closer to 0 is of no use, and may be below it where the random score has another seed.
"""

_SPOKEN = {
    "fault_history": "the fault count",
    "one_rule": "one feature alone",
    "logistic": "a logistic regression",
    "seasonal_residual": "the seasonal residual",
    ROW_RULE: "the farthest metric alone",
}
_DOUBTS = (SUSPICIOUS_FEATURE, SUSPICIOUS_SCORE, TEST_TUNED_THRESHOLD, POINT_ADJUSTED)


def has_skill(score: ForecastScore) -> bool:
    """Say whether a policy should act on it: it ranks better than chance, and its alarms find.

    Of the difference to a random score the whole interval is clearly above 0, and of the recall
    at its threshold the whole interval is above 0, of a detection above what the same alarms
    find at other times; and no column that it reads knows the future.
    A doubt is for a person to look into: the sentence tells it, and it takes no skill away.
    """
    return _is_clearly_above(RANDOM, score) and _finds(score) and not foretelling(score)


def foretelling(score: ForecastScore) -> tuple[str, ...]:
    """Return the columns that it reads and that know the future, by name."""
    return foretelling_names(score.flags)


def foretelling_names(flags: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that are flagged because they know the future, by name."""
    told = (flag.partition(": ") for flag in flags)
    return tuple(text.rpartition(": ")[0] for flag, _, text in told if flag == FORETELLING)


def with_skill(score: ForecastScore) -> ForecastScore:
    """Return the score with its sentence on skill."""
    return replace(score, skill=skill_sentence(score))


def skill_sentence(score: ForecastScore) -> str:
    """Return whether it has skill, or which part is missing; "" if nothing random was scored."""
    random = score.versus.get(RANDOM)
    if random is None:
        return ""
    above = f"AUPRC is above that of a random score by {_text(random)}"
    if random.low is None:
        text = (
            f"No skill shown: it takes {score.told.count(FEW)} to tell, was "
            f"{score.told.count(score.incidents)} in the scored time."
        )
    elif random.high is not None and random.high < 0:
        text = (
            f"No skill: AUPRC is below that of a random score ({_text(random)}); at its threshold "
            f"it found {_found(score)}."
        )
    elif not _is_clearly_above(RANDOM, score):
        text = (
            f"No skill: AUPRC is not surely above that of a random score ({_text(random)}, need "
            f"all of it above {least_above(score.prevalence):+.3g}); at its threshold it found "
            f"{_found(score)}."
        )
    elif not _finds(score):
        text = f"No skill to act on: {above}, but at its threshold it found {_found(score)}."
    elif columns := foretelling(score):
        text = f"No skill: {above}, but it reads what knows the future: {', '.join(columns)}."
    else:
        text = f"Skill: {above}{_beside(score)}; at its threshold it found {_found(score)}."
    doubts = [flag for flag in score.flags if flag.startswith(_DOUBTS)]
    return f"{text} Not to be trusted: {', '.join(doubts)}." if doubts else text


def is_clearly_above(difference: Interval | None, prevalence: float) -> bool:
    """Say whether a difference in AUPRC is wholly above a tenth of the prevalence."""
    return (
        difference is not None
        and difference.low is not None
        and difference.low > least_above(prevalence)
    )


def least_above(prevalence: float) -> float:
    """Return what all of a difference in AUPRC has to be above to be clear."""
    return _CLEAR * prevalence


def _is_clearly_above(other: str, score: ForecastScore) -> bool:
    return is_clearly_above(score.versus.get(other), score.prevalence)


def _finds(score: ForecastScore) -> bool:
    return score.recall.low is not None and score.recall.low > _by_chance(score)


def _by_chance(score: ForecastScore) -> float:
    return 0.0 if score.by_chance is msgspec.UNSET else score.by_chance


def _found(score: ForecastScore) -> str:
    text = f"{len(score.leads_s) or 'none'} of {score.told.count(score.incidents)}"
    if score.by_chance is not msgspec.UNSET:
        found = " and ".join(f"{one:.2g}" for one in (score.recall.value, score.by_chance))
        sure = "" if _finds(score) else ", which is not surely more"
        return f"{text} ({found} of them here and, by the same alarms, at other times{sure})"
    alike = score.leads_s and not _finds(score)
    return f"{text}, too close together to count on" if alike else text


def _beside(score: ForecastScore) -> str:
    """Return how it stands beside what it is least above: first of what it is not surely above."""
    known = [
        (name, above)
        for name in (*BASELINES, *DETECTORS)
        if (above := score.versus.get(name)) and above.high is not None
    ]
    if not known:
        return ""
    unsure = [one for one in known if not _is_clearly_above(one[0], score)]
    nearest, above = min(unsure or known, key=lambda one: one[1].value)
    spoken = _SPOKEN[nearest]
    if above.high is not None and above.high < 0:
        return f", but {spoken} is better still ({_text(above)})"
    if not unsure:
        return f" and above that of {spoken} by {_text(above)}"
    hardly = above.low is not None and above.low > 0
    need = f", need all of it above {least_above(score.prevalence):+.3g}" if hardly else ""
    return f", but not surely above that of {spoken} ({_text(above)}{need})"


def _text(interval: Interval) -> str:
    if interval.low is None:
        return f"{interval.value:+.3g}"
    return f"{interval.value:+.3g} [{interval.low:+.3g}, {interval.high:+.3g}]"
