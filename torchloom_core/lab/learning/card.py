"""The model card: what a model was fitted on, how well it does, and its limits."""

import statistics
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.learning.forecast_score import (
    AlarmUnit,
    ForecastScore,
    Interval,
    alarm_unit,
)
from torchloom_core.lab.learning.skill import Verdict, verdict
from torchloom_core.lab.learning.words import in_words
from torchloom_core.wire.limits import Int64


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """The AUPRC of a candidate on folds of the training time, and why it has none."""

    candidate: str
    auprc: tuple[float | None, ...]
    why: str = ""

    @property
    def mean(self) -> float:
        """The mean over all folds; a fold without a score counts as 0."""
        return sum(value or 0.0 for value in self.auprc) / max(1, len(self.auprc))


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """``card.json``: the data that a model was fitted on, and its score on the time after."""

    predictor: str
    package: str
    trace: str
    trace_digest: str
    source: str
    licence: str
    synthetic: bool
    fitted_from_ns: Int64
    fitted_until_ns: Int64
    calibrated_from_ns: Int64
    calibrated_until_ns: Int64
    """Time on which probabilities and threshold were set, with an earlier fit."""
    until_ns: Int64
    """End of training: anything that became known later was not used; ``score`` is of later
    time."""
    calibration: str
    watched: str = "component"
    """Kind of the components, such as node or disk."""
    score: ForecastScore
    baselines: tuple[ForecastScore, ...] = ()
    """``random`` and the installed baselines, on the same moments."""
    limits: tuple[str, ...] = msgspec.field(name="remarks", default=())
    tried: tuple[Tried, ...] = ()
    """The candidates, if the predictor was chosen automatically."""
    columns: tuple[str, ...] = ()
    """Names of its inputs, if the predictor lists them."""

    @property
    def verdict(self) -> Verdict:
        """The verdict by the current rules, also for an older card."""
        return verdict(self.score)


def facts(card: Card) -> list[tuple[str, str]]:
    """Return the card's content other than scores, as name and text."""
    score = card.score
    made = " (synthetic)" if card.synthetic else ""
    calibrated = _span(card.calibrated_from_ns, card.calibrated_until_ns)
    return [
        ("trace", f"{card.trace}{made}, {card.source}, {card.licence}"),
        ("task", _task(score)),
        ("fitted on", _span(card.fitted_from_ns, card.fitted_until_ns)),
        ("calibrated on", f"{calibrated}, with an earlier fit"),
        ("calibration", card.calibration),
        ("scored on", _span(score.from_ns, score.until_ns)),
        ("", _exposure(card)),
        ("prevalence", f"{score.prevalence:.4g} of {score.samples} moments"),
        (score.wording.many, f"{score.incidents} {score.wording.found}"),
        ("threshold", f"{score.threshold:.3g}, {score.threshold_from}"),
    ]


def score_columns(card: Card) -> tuple[str, ...]:
    """Return the column names of ``score_rows``."""
    alarms = f"false alarms {_alarm_unit(card).text}"
    return ("predictor", "AUPRC", "alarm precision", "recall", "lead time", alarms)


def score_rows(card: Card) -> Iterator[tuple[str, ...]]:
    """Yield one row of ``score_columns`` for the model and for each baseline."""
    unit = _alarm_unit(card)
    for score in (card.score, *card.baselines):
        yield (
            score.predictor,
            interval_text(score.auprc),
            interval_text(score.precision),
            _recall(score),
            _lead(score),
            interval_text(unit.scaled(score.false_alarms_per_node_day)),
        )


def _alarm_unit(card: Card) -> AlarmUnit:
    scores = (card.score, *card.baselines)
    return alarm_unit(card.watched, (score.false_alarms_per_node_day.value for score in scores))


def versus_rows(card: Card) -> Iterator[tuple[str, str]]:
    """Yield the paired difference in AUPRC to each baseline."""
    for name, interval in card.score.versus.items():
        yield name, interval_text(interval)


TRIED_COLUMNS = ("candidate", "mean AUPRC", "by fold")


def tried_rows(card: Card) -> Iterator[tuple[str, ...]]:
    """Yield one row of ``TRIED_COLUMNS`` for each candidate, the best first."""
    for one in sorted(card.tried, key=lambda tried: -tried.mean):
        each = ", ".join("-" if value is None else f"{value:.3g}" for value in one.auprc)
        why = f" ({one.why})" if one.why and each else one.why
        yield one.candidate, f"{one.mean:.3g}" if each else "-", f"{each}{why}"


def to_markdown(card: Card) -> str:
    """Return the card as a page, ``card.md``."""
    lines = [f"# {card.predictor} ({card.package})", "", f"**{card.verdict.sentence}**", ""]
    lines += _table(("", ""), facts(card))
    lines += ["", "## Score on later time", ""]
    lines += _table(score_columns(card), score_rows(card))
    many = card.score.wording.many
    lines += ["", f"Brackets: 95 % intervals, given if there are enough {many}.", ""]
    lines += [f"- AUPRC above {name}: {text}" for name, text in versus_rows(card)]
    lines += [f"- AUPRC interval: {card.score.auprc.method}"]
    lines += [f"- leak or suspicion: {flag}" for flag in card.score.flags]
    if card.tried:
        lines += [
            "",
            "## Candidates, scored on the training time",
            "",
            *_table(TRIED_COLUMNS, tried_rows(card)),
        ]
    if card.columns:
        lines += ["", "## Inputs", "", *(f"- {column}" for column in card.columns)]
    lines += ["", "## Limits", "", *(f"- {limit}" for limit in card.limits)]
    return "\n".join(lines) + "\n"


def _table(
    head: tuple[str, ...], rows: "Iterator[tuple[str, ...]] | list[tuple[str, str]]"
) -> list[str]:
    body = [head, ("---",) * len(head), *rows]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in body]


def interval_text(interval: Interval) -> str:
    """Return ``0.089 [0.053, 0.144]``, or the value alone without an interval."""
    return interval.text("{:.3g}".format)


def _exposure(card: Card) -> str:
    components, days = card.score.components, card.score.component_days
    return (
        f"{components} component{'' if components == 1 else 's'}, "
        f"{days:.{0 if days >= 10 else 2}f} {card.watched}-days"
    )


def _task(score: ForecastScore) -> str:
    horizon = in_words(score.horizon_s)
    if score.task == "detect":
        return f"whether an incident is in progress; alarms within {horizon} count once"
    lead = f", no sooner than {in_words(score.lead_s)}" if score.lead_s else ""
    return f"whether a failure starts within {horizon}{lead}"


def _span(from_ns: int, until_ns: int) -> str:
    return f"{_date(from_ns)} to {_date(until_ns)}"


def _date(ts_ns: int) -> str:
    return f"{datetime.fromtimestamp(ts_ns / SECOND_NS, UTC):%Y-%m-%d %H:%M}"


def _recall(score: ForecastScore) -> str:
    """Return the recall, and the recall by chance."""
    text = interval_text(score.recall)
    if score.by_chance is msgspec.UNSET:
        return text
    return f"{text}, {score.by_chance:.3g} by chance"


def _lead(score: ForecastScore) -> str:
    """Return the median lead time; for a detection, the median delay."""
    if not score.leads_s:
        return "-"
    median_s = statistics.median(score.leads_s)
    if score.task == "forecast":
        return f"median {in_words(median_s)}"
    return f"median {in_words(0 - median_s)} late"
