"""Results over several traces: rows for the tables and the page, findings, and plots."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from torchloom_core.lab.evaluate.over_fleets import MIN_FLEETS
from torchloom_core.lab.evaluate.report import wording
from torchloom_core.lab.evaluate.report.figure import SERIES, canvas, draw_estimate
from torchloom_core.lab.evaluate.report.wording import POINTS
from torchloom_core.lab.evaluate.results import (
    FleetArm,
    FleetGoodput,
    FleetScore,
    OverFleets,
    Report,
    TraceResults,
)
from torchloom_core.lab.learning.card import interval_text
from torchloom_core.lab.learning.forecast_score import AlarmUnit, ForecastScore, Interval
from torchloom_core.lab.learning.skill import RANDOM, is_clearly_above, least_above

_ROW_INCH = 0.24
_NONE = Interval(value=float("nan"))


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
                wording.signed(over.versus.get(RANDOM)),
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
        wording.signed(score.versus.get(RANDOM)),
        wording.estimate(score.precision, 2),
        wording.recall(score),
        interval_text(alarms.scaled(score.false_alarms_per_node_day)),
    )


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _score(over: FleetScore, traces: int) -> str:
    text = (
        f"{over.predictor}, over {traces} traces: AUPRC {wording.estimate(over.auprc)} on the mean "
        f"at a prevalence of {over.prevalence:.3g}, {over.pooled.auprc:.3f} pooled."
    )
    random = over.versus.get(RANDOM)
    if random is None or random.low is None:
        return f"{text} {_too_few(traces, ' with failures')}"
    counts = f"; ahead on {random.ahead} traces, behind on {random.behind}"
    ranks = f"a random score on fleets like these ({wording.signed(random)}"
    if is_clearly_above(random, over.prevalence):
        return f"{text} It is above {ranks}{counts})."
    need = f"need the whole interval above {least_above(over.prevalence):+.3g}"
    return f"{text} It is not clearly above {ranks}, {need}{counts})."


def _too_few(traces: int, of_what: str = "") -> str:
    return (
        f"Too few traces to generalize to another fleet: need {MIN_FLEETS}{of_what}, was "
        f"{traces}{' in total' if of_what else ''}."
    )


def plots(report: Report) -> Iterator[str]:
    """Yield the plots over several traces."""
    fleets = report.fleets
    if fleets is msgspec.UNSET:
        return
    if fleets.forecasts:
        yield _forest(
            "AUPRC above a random score",
            [results.name for results in report.traces],
            {
                over.predictor: (
                    [
                        results.forecasts[number].versus.get(RANDOM, _NONE)
                        for results in report.traces
                    ],
                    over.versus.get(RANDOM, _NONE),
                )
                for number, over in enumerate(fleets.forecasts)
            },
        )
    if fleets.goodput is not msgspec.UNSET:
        lines = {
            over.name: (
                [_without(results, over.name) for results in report.traces],
                over.versus_without,
            )
            for over in fleets.goodput.arms
            if over.versus_without is not None and over.kind in ("candidate", "oracle")
        }
        if lines:
            names = [results.name for results in report.traces]
            title = "gain over the same job without the arm's policies, points"
            yield _forest(title, names, lines, POINTS)


def _without(results: TraceResults, name: str) -> Interval:
    """Return the gain of an arm on a trace."""
    arms = results.simulation.arms if results.simulation else ()
    found = next((arm.versus_without for arm in arms if arm.name == name), None)
    return _NONE if found is None else found


def _forest(
    title: str,
    traces: Sequence[str],
    lines: dict[str, tuple[list[Interval], Interval]],
    scale: float = 1.0,
) -> str:
    """Return a forest plot: per arm or predictor one row per trace and one for the mean."""
    rows = [name for name in lines for _ in range(len(traces) + 1)]
    with canvas(9.6, 0.9 + _ROW_INCH * len(rows)) as drawn:
        axes, names, row = drawn.axes, list[str](), 0
        axes.axvline(0, color="#6e7781", lw=1, ls="--")
        for (name, (each, mean)), colour in zip(lines.items(), SERIES * len(lines), strict=False):
            shown = [(trace, interval, "o") for trace, interval in zip(traces, each, strict=True)]
            shown.append(("mean over fleets", mean, "D"))
            for trace, interval, mark in shown:
                draw_estimate(axes, row, interval, mark, colour, scale)
                names.append(f"{name}, {trace}")
                row += 1
        axes.set_yticks(range(row), names)
        axes.set_ylim(row - 0.4, -0.6)
        axes.set_xlabel(title)
    return drawn.svg
