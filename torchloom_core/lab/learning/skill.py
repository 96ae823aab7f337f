"""The verdict on a predictor: refused, no skill, weak or useful, with a sentence of reasons.

Model cards, reports of replays and the activation of policies use it. docs/fitting.md has the
sources of the constants.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from torchloom_core.lab.learning.forecast_score import (
    FEW,
    LEAKY_COLUMN,
    POINT_ADJUSTED,
    SUSPICIOUS_FEATURE,
    SUSPICIOUS_SCORE,
    TEST_TUNED_THRESHOLD,
    ForecastScore,
    Interval,
    Level,
    alarm_unit,
)

RANDOM = "random"
BASELINES = ("fault_history", "one_rule", "logistic")
"""Predictors that every other predictor has to beat, by name."""
ROW_RULE = "row_rule"
DETECTORS = ("seasonal_residual", ROW_RULE)
"""Detectors without labels that a detection has to beat as well."""

LEAST_FOUND = 0.1
"""A useful predictor finds at least this share of the failures at its threshold."""
LEAST_RIGHT = 0.05
"""At least this share of a useful predictor's alarms is right."""
MOST_OVER = 2.0
"""A useful predictor raises at most this multiple of the allowed false alarms."""

_CLEAR = 0.1
"""Least difference in AUPRC, as a share of the prevalence, which is a random score's AUPRC.

A smaller difference is of no use, and may be negative with another seed of the random score.
"""

_DISPLAY_NAMES = {
    "fault_history": "the fault count",
    "one_rule": "one feature alone",
    "logistic": "a logistic regression",
    "seasonal_residual": "the seasonal residual",
    ROW_RULE: "the farthest metric alone",
}
_SUSPICIONS = (SUSPICIOUS_FEATURE, SUSPICIOUS_SCORE, TEST_TUNED_THRESHOLD, POINT_ADJUSTED)


class Verdict(NamedTuple):
    """A level, and a sentence with its figures and the shortfalls from the next level."""

    level: Level
    sentence: str


def verdict(score: ForecastScore) -> Verdict:
    """Return the verdict on a score.

    - *refused*: it reads a leaky column.
    - *no skill*: its AUPRC is not significantly above that of a random score.
    - *weak*: it is, but :func:`shortfalls` finds something missing.
    - *useful*: nothing is missing; by default policies act only on such a model.

    Suspicions (flags such as ``suspicious_score``) are for a person to check: the sentence names
    them, the level does not change. The sentence is "" without a random score to compare with.
    """
    level, text = _verdict(score)
    suspicions = [flag for flag in score.flags if flag.startswith(_SUSPICIONS)]
    return Verdict(level, f"{text} Suspicious: {', '.join(suspicions)}." if suspicions else text)


def _verdict(score: ForecastScore) -> Verdict:
    random = score.versus.get(RANDOM)
    figures = f"at its threshold {_figures(score)}."
    if columns := leaky(score):
        named = ", ".join(columns)
        return Verdict("refused", f"Refused: it reads leaky columns: {named}; {figures}")
    if random is None:
        return Verdict("no skill", "")
    if random.low is None:
        return Verdict(
            "no skill",
            f"No skill shown: need {score.wording.count(FEW)} in the scored time, was "
            f"{score.incidents}; {figures}",
        )
    if not _is_clearly_above(RANDOM, score):
        below = random.high is not None and random.high < 0
        need = "" if below else f", need all of it above {least_above(score.prevalence):+.3g}"
        return Verdict(
            "no skill",
            f"No skill: AUPRC is {'below' if below else 'not significantly above'} that of a "
            f"random score ({_text(random)}{need}); {figures}",
        )
    ranks = f"AUPRC is above that of a random score by {_text(random)}{_beside(score)}; {figures}"
    if missing := [*shortfalls(score)]:
        return Verdict("weak", f"Weak: {ranks} Not useful, as {'; '.join(missing)}.")
    return Verdict("useful", f"Useful: {ranks}")


def shortfalls(score: ForecastScore) -> Iterator[str]:
    """Yield what a predictor that ranks better than chance lacks to be useful, as clauses."""
    many = score.wording.many
    if not _finds(score):
        yield f"its recall is not significantly above chance ({_interval(score.recall)})"
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
    if score.predictor in (*BASELINES, *DETECTORS):  # none is significantly above itself
        if any(above.high is not None and above.high < 0 for _, above in _baselines(score)):
            yield "another baseline is better"
    elif any(not _is_clearly_above(name, score) for name, _ in _baselines(score)):
        yield "it is not significantly above every baseline"


def leaky(score: ForecastScore) -> tuple[str, ...]:
    """Return the leaky columns that it reads, by name."""
    return leaky_names(score.flags)


def leaky_names(flags: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that are flagged as leaky, by name."""
    parts = (flag.partition(": ") for flag in flags)
    return tuple(text.rpartition(": ")[0] for flag, _, text in parts if flag == LEAKY_COLUMN)


def with_verdict(score: ForecastScore) -> ForecastScore:
    """Return the score with its verdict filled in."""
    level, sentence = verdict(score)
    return replace(score, verdict=level if sentence else "", skill=sentence)


def is_clearly_above(difference: Interval | None, prevalence: float) -> bool:
    """Return whether the interval of a difference in AUPRC is above a tenth of the prevalence."""
    return (
        difference is not None
        and difference.low is not None
        and difference.low > least_above(prevalence)
    )


def least_above(prevalence: float) -> float:
    """Return the bound that the interval of a difference in AUPRC has to be above."""
    return _CLEAR * prevalence


def _is_clearly_above(other: str, score: ForecastScore) -> bool:
    return is_clearly_above(score.versus.get(other), score.prevalence)


def _finds(score: ForecastScore) -> bool:
    by_chance = 0.0 if score.by_chance is msgspec.UNSET else score.by_chance
    return score.recall.low is not None and score.recall.low > by_chance


def _figures(score: ForecastScore) -> str:
    """Return recall, precision and false alarms at the threshold, with chance and budget."""
    found = f"it found {len(score.leads_s) or 'none'} of {score.wording.count(score.incidents)}"
    if score.incidents:
        chance = score.by_chance
        beside = "" if chance is msgspec.UNSET else f", by chance {_share(chance)}"
        found += f" ({_share(score.recall.value)}{beside})"
    raised, allowed = score.false_alarms_per_node_day.value, score.allowed_per_node_day
    if not score.leads_s and not raised:
        return f"{found} and raised no alarm"
    budget = 0.0 if allowed is msgspec.UNSET else allowed
    unit = alarm_unit("component", (raised, budget))
    limit = ""
    if allowed is not msgspec.UNSET:
        more = "more than the " if raised > allowed else ""
        limit = f", {more}{unit.days * allowed:.4g} allowed"
    right = f"{_share(score.precision.value)} of its alarms were right"
    return f"{found}, {right}, and it raised {unit.rate_text(raised)}{limit}"


def _baselines(score: ForecastScore) -> list[tuple[str, Interval]]:
    """Return the scored baselines, and by how much it is above each."""
    return [
        (name, above)
        for name in (*BASELINES, *DETECTORS)
        if (above := score.versus.get(name)) and above.high is not None
    ]


def _beside(score: ForecastScore) -> str:
    """Return a clause on the nearest baseline, first of those it is not significantly above."""
    scored = _baselines(score)
    if not scored:
        return ", with no baseline to compare with"
    unsure = [one for one in scored if not _is_clearly_above(one[0], score)]
    nearest, above = min(unsure or scored, key=lambda one: one[1].value)
    name = _DISPLAY_NAMES[nearest]
    if above.high is not None and above.high < 0:
        return f", but below that of {name} ({_text(above)})"
    if not unsure:
        return f" and above that of {name} by {_text(above)}"
    hardly = above.low is not None and above.low > 0
    need = f", need all of it above {least_above(score.prevalence):+.3g}" if hardly else ""
    return f", but not significantly above that of {name} ({_text(above)}{need})"


def _share(share: float) -> str:
    return f"{100.0 * share:.3g} %"


def _interval(share: Interval) -> str:
    if share.low is None or share.high is None:
        return f"{_share(share.value)}, without an interval"
    return f"{_share(share.value)}, 95 % interval from {_share(share.low)}"


def _text(interval: Interval) -> str:
    return interval.text("{:+.3g}".format)
