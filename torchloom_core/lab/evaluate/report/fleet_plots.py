"""Plots over several traces: each trace's value with its interval, and their mean."""

from collections.abc import Iterator, Sequence

import msgspec

from torchloom_core.lab.evaluate.report.figure import SERIES, canvas
from torchloom_core.lab.evaluate.report.wording import POINTS
from torchloom_core.lab.evaluate.results import Report, TraceResults
from torchloom_core.lab.learning.forecast_score import Interval
from torchloom_core.lab.learning.skill import RANDOM

_ROW_INCH = 0.24
_NONE = Interval(value=float("nan"))


def plots(report: Report) -> list[str]:
    """Return the plots over several traces."""
    return list(_plots(report))


def _plots(report: Report) -> Iterator[str]:
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
                _in_points(over.versus_without),
            )
            for over in fleets.goodput.arms
            if over.versus_without is not None and over.kind in ("candidate", "oracle")
        }
        if lines:
            names = [results.name for results in report.traces]
            yield _forest("gain over the same job without the arm's policies, points", names, lines)


def _without(results: TraceResults, name: str) -> Interval:
    """Return the gain of an arm on a trace, in points."""
    arms = results.simulation.arms if results.simulation else ()
    return _in_points(next((arm.versus_without for arm in arms if arm.name == name), None))


def _in_points(gain: Interval | None) -> Interval:
    if gain is None:
        return _NONE
    low, high = gain.low, gain.high
    return Interval(
        value=POINTS * gain.value,
        low=None if low is None else POINTS * low,
        high=None if high is None else POINTS * high,
    )


def _forest(
    title: str, traces: Sequence[str], lines: dict[str, tuple[list[Interval], Interval]]
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
                if interval.low is not None and interval.high is not None:
                    ends = [interval.low, interval.high]
                    axes.plot(ends, [row, row], color=colour, lw=2.2, alpha=0.55)
                axes.plot([interval.value], [row], mark, color=colour, ms=6)
                names.append(f"{name}, {trace}")
                row += 1
        axes.set_yticks(range(row), names)
        axes.set_ylim(row - 0.4, -0.6)
        axes.set_xlabel(title)
    return drawn.svg
