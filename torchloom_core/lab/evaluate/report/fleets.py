"""Results over several traces: rows for the tables and the page, and findings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from torchloom_core.lab.evaluate.fleet_means import MIN_FLEETS
from torchloom_core.lab.evaluate.fleet_results import FleetArm, FleetGoodput, FleetScore, OverFleets
from torchloom_core.lab.evaluate.report import wording
from torchloom_core.lab.evaluate.results import Report
from torchloom_core.lab.learning.card import interval_text
from torchloom_core.lab.learning.forecast_score import AlarmUnit, ForecastScore, Interval
from torchloom_core.lab.learning.skill import RANDOM, is_clearly_above, least_above


@dataclass(frozen=True)
class Row:
    """One row of a listing: of one trace, or over all traces."""

    cells: tuple[str, ...]
    trace: bool


@dataclass(frozen=True)
class Listing:
    """Rows of every trace, and the rows over all traces."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def listings(report: Report) -> Iterator[Listing]:
    """Yield the listings of a report on several traces."""
    fleets = report.fleets
    if fleets is msgspec.UNSET:
        return
    if fleets.forecasts:
        alarms = wording.forecast_alarms(report.traces)
        yield Listing(
            f"Forecasts over {fleets.traces} traces",
            (
                "predictor", "trace", "prevalence", "AUPRC", "above random", "precision", "recall",
                f"false alarms {alarms.text}",
            ),
            tuple(_forecasts(report, fleets.forecasts, alarms)),
        )  # fmt: skip
    if fleets.goodput is not msgspec.UNSET:
        yield Listing(
            f"Goodput over {fleets.traces} traces, gains in points",
            ("arm", "trace", "goodput", "over no policy", f"over {fleets.goodput.reference}"),
            tuple(_goodput(report, fleets.goodput)),
        )


def findings(fleets: OverFleets) -> list[str]:
    """Return the findings over all traces, one or two sentences per predictor and arm."""
    found = [_score(one, fleets.traces) for one in fleets.forecasts]
    if fleets.goodput is not msgspec.UNSET:
        found += _arms(fleets.goodput, fleets.traces)
    return found


def _forecasts(report: Report, scores: Sequence[FleetScore], alarms: AlarmUnit) -> Iterator[Row]:
    for number, over in enumerate(scores):
        for results in report.traces:
            cells = _cells(over.predictor, results.name, results.forecasts[number], alarms)
            yield Row(cells, True)
        yield Row(
            (
                over.predictor,
                "mean over fleets",
                f"{over.prevalence:.3g}",
                wording.estimate(over.auprc),
                _signed(over.versus.get(RANDOM)),
                wording.estimate(over.precision, 2),
                wording.estimate(over.recall, 2),
                interval_text(alarms.scaled(over.false_alarms_per_node_day)),
            ),
            False,
        )
        pooled = over.pooled
        share = pooled.positives / pooled.samples if pooled.samples else 0.0
        yield Row(
            (
                over.predictor,
                "pooled",
                f"{share:.3g}",
                f"{pooled.auprc:.3f}",
                "",
                _share(pooled.precision),
                _share(pooled.recall),
                f"{alarms.days * pooled.false_alarms_per_node_day:.3g}",
            ),
            False,
        )


def _goodput(report: Report, goodput: FleetGoodput) -> Iterator[Row]:
    """Yield the arms, the best over fleets first."""
    of_trace = [
        (results.name, {arm.name: arm for arm in results.simulation.arms})
        for results in report.traces
        if results.simulation is not None
    ]
    for over in sorted(goodput.arms, key=lambda arm: (-arm.goodput.value, arm.name)):
        for (trace, arms), gain in zip(of_trace, over.over_reference, strict=True):
            arm = arms[over.name]
            cells = (
                over.name,
                trace,
                wording.estimate(arm.goodput),
                wording.gain(arm.versus_without),
                "" if over.versus_reference is None else wording.gain(Interval(value=gain)),
            )
            yield Row(cells, True)
        mean = (
            over.name,
            "mean over fleets",
            wording.estimate(over.goodput),
            wording.gain(over.versus_without),
            wording.gain(over.versus_reference),
        )
        yield Row(mean, False)


def _arms(goodput: FleetGoodput, traces: int) -> Iterator[str]:
    """Yield the comparison of each candidate, and the reference."""
    for arm in goodput.arms:
        if arm.kind == "candidate":
            yield _candidate(arm, goodput.reference, traces)
    reference = next(arm for arm in goodput.arms if arm.name == goodput.reference)
    yield (
        f"Of the baselines that need no forecast and recover as these jobs do, {reference.name} is "
        f"best on the mean over fleets: goodput {wording.estimate(reference.goodput)}."
    )


def _candidate(arm: FleetArm, reference: str, traces: int) -> str:
    gains = (("the same job without it", arm.versus_without), (reference, arm.versus_reference))
    relations = [f"{_relation(gain)} {other} ({_gain(gain)})" for other, gain in gains if gain]
    text = f"{arm.name}, over {traces} traces: {', and '.join(relations)}."
    few = any(gain.low is None for _, gain in gains if gain)
    return f"{text} {_too_few(traces)}" if few else text


def _relation(gain: Interval) -> str:
    if gain.low is None:
        return "compared with"
    if not wording.is_clear(gain):
        return "not clearly different on the mean over fleets from"
    return f"{'better' if gain.value > 0 else 'worse'} on the mean over fleets than"


def _gain(gain: Interval) -> str:
    return f"{wording.gain(gain)} points; ahead on {gain.ahead} traces, behind on {gain.behind}"


def _cells(predictor: str, trace: str, score: ForecastScore, alarms: AlarmUnit) -> tuple[str, ...]:
    return (
        predictor,
        trace,
        f"{score.prevalence:.3g}",
        wording.estimate(score.auprc),
        _signed(score.versus.get(RANDOM)),
        wording.estimate(score.precision, 2),
        wording.recall(score),
        interval_text(alarms.scaled(score.false_alarms_per_node_day)),
    )


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _signed(interval: Interval | None) -> str:
    if interval is None:
        return ""
    if interval.low is None or interval.high is None:
        return f"{interval.value:+.3f}"
    return f"{interval.value:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def _score(over: FleetScore, traces: int) -> str:
    text = (
        f"{over.predictor}, over {traces} traces: AUPRC {wording.estimate(over.auprc)} on the mean "
        f"at a prevalence of {over.prevalence:.3g}, {over.pooled.auprc:.3f} pooled."
    )
    random = over.versus.get(RANDOM)
    if random is None or random.low is None:
        return f"{text} {_too_few(traces, ' with failures')}"
    counts = f"; ahead on {random.ahead} traces, behind on {random.behind}"
    ranks = f"a random score on fleets like these ({_signed(random)}"
    if is_clearly_above(random, over.prevalence):
        return f"{text} It is above {ranks}{counts})."
    need = f"need the whole interval above {least_above(over.prevalence):+.3g}"
    return f"{text} It is not clearly above {ranks}, {need}{counts})."


def _too_few(traces: int, of_what: str = "") -> str:
    return (
        f"Too few traces to generalize to another fleet: need {MIN_FLEETS}{of_what}, was "
        f"{traces}{' in total' if of_what else ''}."
    )
