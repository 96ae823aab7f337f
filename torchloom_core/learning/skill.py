"""The verdict on a predictor: refused, no skill, weak or useful, with one sentence that says why.

A model's card, the report of a replay and the activation of a policy all ask here.
docs/fitting.md says where the constants come from.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from torchloom_core.learning.alarm_rate import alarm_unit
from torchloom_core.learning.forecast_score import (
    FEW,
    LEAKY_COLUMN,
    POINT_ADJUSTED,
    SUSPICIOUS_FEATURE,
    SUSPICIOUS_SCORE,
    TEST_TUNED_THRESHOLD,
    ForecastScore,
    Interval,
    Level,
)

RANDOM = "random"
BASELINES = ("fault_history", "one_rule", "logistic")
"""Predictors that any other has to beat, by name."""
ROW_RULE = "row_rule"
DETECTORS = ("seasonal_residual", ROW_RULE)
"""What a detection has to beat as well: two that learn from no label."""

LEAST_FOUND = 0.1
"""A useful predictor finds at least this share of the failures at its threshold."""
LEAST_RIGHT = 0.05
"""At least this share of a useful predictor's alarms is right."""
MOST_OVER = 2.0
"""A useful predictor's threshold raises at most so many times the false alarms allowed."""

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


class Verdict(NamedTuple):
    """A level, and the sentence that gives its figures and what is missing for a higher one."""

    level: Level
    sentence: str


def verdict(score: ForecastScore) -> Verdict:
    """Return the verdict on a score.

    - *refused*: a column that it reads knows the future.
    - *no skill*: its AUPRC is not surely above that of a random score.
    - *weak*: it is, but something that :func:`shortfalls` names is missing.
    - *useful*: nothing is missing; by default policies act on such a model only.

    A doubt (a flag such as ``suspicious_score``) is for a person to look into: the sentence
    names it, and it changes no level. The sentence is "" where no random score was made beside.
    """
    level, text = _verdict(score)
    doubts = [flag for flag in score.flags if flag.startswith(_DOUBTS)]
    return Verdict(level, f"{text} Not to be trusted: {', '.join(doubts)}." if doubts else text)


def is_useful(score: ForecastScore) -> bool:
    """Say whether policies should act on it."""
    return verdict(score).level == "useful"


def _verdict(score: ForecastScore) -> Verdict:
    random = score.versus.get(RANDOM)
    figures = f"at its threshold {_figures(score)}."
    if columns := leaky(score):
        named = ", ".join(columns)
        return Verdict("refused", f"Refused: it reads what knows the future: {named}; {figures}")
    if random is None:
        return Verdict("no skill", "")
    if random.low is None:
        return Verdict(
            "no skill",
            f"No skill shown: it takes {score.told.count(FEW)} to tell, was "
            f"{score.told.count(score.incidents)} in the scored time; {figures}",
        )
    if not _is_clearly_above(RANDOM, score):
        below = random.high is not None and random.high < 0
        need = "" if below else f", need all of it above {least_above(score.prevalence):+.3g}"
        return Verdict(
            "no skill",
            f"No skill: AUPRC is {'below' if below else 'not surely above'} that of a random score "
            f"({_text(random)}{need}); {figures}",
        )
    ranks = f"AUPRC is above that of a random score by {_text(random)}{_beside(score)}; {figures}"
    if missing := [*shortfalls(score)]:
        return Verdict("weak", f"Weak: {ranks} Not useful, as {'; '.join(missing)}.")
    return Verdict("useful", f"Useful: {ranks}")


def shortfalls(score: ForecastScore) -> Iterator[str]:
    """Yield what a predictor that ranks better than chance lacks to be useful, as clauses."""
    many = score.told.many
    if not _finds(score):
        yield f"what it found is not surely more than by chance ({_interval(score.recall)})"
    elif score.recall.value < LEAST_FOUND:
        yield f"it found fewer than {_share(LEAST_FOUND)} of the {many}"
    if score.leads_s and score.precision.value < LEAST_RIGHT:
        yield f"fewer than {_share(LEAST_RIGHT)} of its alarms were right"
    raised, allowed = score.false_alarms_per_node_day, score.allowed_per_node_day
    if (
        allowed is not msgspec.UNSET
        and raised.value > MOST_OVER * allowed
        and (raised.low is None or raised.low > allowed)
    ):
        yield f"it raised more than {MOST_OVER:g} times the false alarms that were allowed"
    if score.predictor in (*BASELINES, *DETECTORS):  # nothing is surely above itself
        if any(above.high is not None and above.high < 0 for _, above in _baselines(score)):
            yield "another baseline is better"
    elif any(not _is_clearly_above(name, score) for name, _ in _baselines(score)):
        yield "it is not surely above every baseline"


def leaky(score: ForecastScore) -> tuple[str, ...]:
    """Return the columns that it reads and that know the future, by name."""
    return leaky_names(score.flags)


def leaky_names(flags: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that are flagged because they know the future, by name."""
    told = (flag.partition(": ") for flag in flags)
    return tuple(text.rpartition(": ")[0] for flag, _, text in told if flag == LEAKY_COLUMN)


def with_verdict(score: ForecastScore) -> ForecastScore:
    """Return the score with its verdict in it."""
    level, sentence = verdict(score)
    return replace(score, verdict=level if sentence else "", skill=sentence)


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
    by_chance = 0.0 if score.by_chance is msgspec.UNSET else score.by_chance
    return score.recall.low is not None and score.recall.low > by_chance


def _figures(score: ForecastScore) -> str:
    """Return recall, precision and false alarms at the threshold, beside chance and budget."""
    found = f"it found {len(score.leads_s) or 'none'} of {score.told.count(score.incidents)}"
    if score.incidents:
        chance = score.by_chance
        beside = "" if chance is msgspec.UNSET else f", by chance {_share(chance)}"
        found += f" ({_share(score.recall.value)}{beside})"
    raised, allowed = score.false_alarms_per_node_day.value, score.allowed_per_node_day
    if not score.leads_s and not raised:
        return f"{found} and raised no alarm"
    budget = 0.0 if allowed is msgspec.UNSET else allowed
    unit = alarm_unit("component", (raised, budget))
    held = ""
    if allowed is not msgspec.UNSET:
        more = "more than the " if raised > allowed else ""
        held = f", {more}{unit.days * allowed:.4g} allowed"
    right = f"{_share(score.precision.value)} of its alarms were right"
    return f"{found}, {right}, and {unit.said(raised)} were raised{held}"


def _baselines(score: ForecastScore) -> list[tuple[str, Interval]]:
    """Return the baselines that were scored beside it, and by how much it is above them."""
    return [
        (name, above)
        for name in (*BASELINES, *DETECTORS)
        if (above := score.versus.get(name)) and above.high is not None
    ]


def _beside(score: ForecastScore) -> str:
    """Return how it stands beside what it is least above: first of what it is not surely above."""
    known = _baselines(score)
    if not known:
        return ", with no baseline scored beside it"
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


def _share(share: float) -> str:
    return f"{100.0 * share:.3g} %"


def _interval(share: Interval) -> str:
    if share.low is None or share.high is None:
        return f"no interval of {_share(share.value)}"
    return f"the interval of {_share(share.value)} begins at {_share(share.low)}"


def _text(interval: Interval) -> str:
    if interval.low is None:
        return f"{interval.value:+.3g}"
    return f"{interval.value:+.3g} [{interval.low:+.3g}, {interval.high:+.3g}]"
