"""Say in one plain sentence whether a predictor has skill."""

from msgspec.structs import replace

from torchloom_core.evaluate.intervals import FEW
from torchloom_core.evaluate.leaks import POINT_ADJUSTED, SUSPICIOUS_FEATURE, TEST_TUNED_THRESHOLD
from torchloom_core.evaluate.results import ForecastScore, Interval

RANDOM = "random"
FAULT_HISTORY = "fault_history"

_DOUBTS = (SUSPICIOUS_FEATURE, TEST_TUNED_THRESHOLD, POINT_ADJUSTED)


def has_skill(score: ForecastScore) -> bool:
    """Say whether it is surely better than a random score: the whole interval is above 0."""
    random = score.versus.get(RANDOM)
    return random is not None and random.low is not None and random.low > 0


def with_skill(score: ForecastScore) -> ForecastScore:
    """Return the score with its sentence on skill."""
    return replace(score, skill=_sentence(score))


def _sentence(score: ForecastScore) -> str:
    random = score.versus.get(RANDOM)
    if random is None:
        return ""
    if random.low is None:
        count = "1 failure" if score.incidents == 1 else f"{score.incidents} failures"
        text = f"No skill shown: it takes {FEW} failures to tell, was {count} in the scored time."
    elif not has_skill(score):
        text = f"No skill: AUPRC is not surely above that of a random score ({_text(random)})."
    else:
        text = f"Skill: AUPRC is above that of a random score by {_text(random)}{_beside(score)}."
    doubts = [flag for flag in score.flags if flag.startswith(_DOUBTS)]
    return f"{text} Not to be trusted: {', '.join(doubts)}." if doubts else text


def _beside(score: ForecastScore) -> str:
    history = score.versus.get(FAULT_HISTORY)
    if history is None or history.low is None or history.high is None:
        return ""
    if history.low > 0:
        return f" and above that of the fault count by {_text(history)}"
    if history.high < 0:
        return f", but the fault count is better still ({_text(history)})"
    return f", but not to be told from that of the fault count ({_text(history)})"


def _text(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return f"{interval.value:+.3f}"
    return f"{interval.value:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"
