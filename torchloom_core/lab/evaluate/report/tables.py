"""A report as rich tables, for a terminal."""

import statistics
from collections.abc import Iterable, Iterator

import msgspec
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from torchloom_core.lab.evaluate.allreduce_results import AllreduceSimulation
from torchloom_core.lab.evaluate.report import allreduce, fleets, wording
from torchloom_core.lab.evaluate.report.findings import alerts, findings, ranked, warnings, watched
from torchloom_core.lab.evaluate.results import (
    ReplayedPolicy,
    Report,
    Simulation,
    Sweep,
    TraceResults,
)
from torchloom_core.lab.learning.card import interval_text
from torchloom_core.lab.learning.forecast_score import AlarmUnit, ForecastScore

_STYLE_OF = {"bound": "dim", "baseline": "", "oracle": "green", "candidate": "bold cyan"}


def tables(report: Report) -> RenderableType:
    """Return the tables and the findings of a report."""
    parts: list[RenderableType] = []
    for results in report.traces:
        if report.fleets is not msgspec.UNSET:
            parts.append(Text(f"{results.name}:", style="bold underline"))
        parts += _parts(results)
        parts += _sentences(findings(results))
    if report.fleets is not msgspec.UNSET:
        parts += [_listed(one) for one in fleets.listings(report)]
        parts += _sentences(fleets.findings(report.fleets))
    return Group(*parts)


def _sentences(findings: Iterable[str]) -> Iterator[Text]:
    return (Text(f"• {sentence}") for sentence in findings)


def _listed(listing: fleets.Listing) -> Table:
    table = _table(listing.title, *listing.columns)
    for row in listing.rows:
        table.add_row(*map(escape, row.cells), style="" if row.trace else "bold cyan")
    return table


def _parts(results: TraceResults) -> Iterator[RenderableType]:
    if results.forecasts:
        yield _forecasts(results.forecasts, wording.forecast_alarms([results]))
        if any(score.versus for score in results.forecasts):
            yield _versus(results.forecasts)
        for score in results.forecasts:
            yield from (_warning(f"{score.predictor}: {flag}") for flag in score.flags)
    if results.policies:
        yield _policies(results.policies, wording.policy_alarms(results))
    if results.simulation is not None:
        yield _arms(results.simulation)
        if watched(results.simulation):
            yield _worth(results.simulation)
        if results.simulation.sweep is not msgspec.UNSET:
            yield from _sweep(results.simulation.sweep)
        yield from map(_warning, warnings(results.simulation))
        yield from map(_warning, alerts(results.simulation))
    if results.allreduce is not msgspec.UNSET:
        yield _allreduce(results.allreduce)
        yield from map(_warning, allreduce.warnings(results.allreduce))


def _warning(text: str) -> Text:
    return Text(f"! {text}", style="yellow")


def _table(title: str, *headers: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for number, header in enumerate(headers):
        table.add_column(header, justify="left" if number == 0 else "right", overflow="fold")
    return table


def _forecasts(scores: Iterable[ForecastScore], alarms: AlarmUnit) -> Table:
    table = _table(
        "Forecasts",
        "predictor", "horizon", "prevalence", "AUPRC", "precision", "recall", "F1",
        f"false alarms {alarms.text}", "lead",
    )  # fmt: skip
    for score in scores:
        median = statistics.median(score.leads_s) if score.leads_s else None
        table.add_row(
            escape(score.predictor),
            wording.duration(score.horizon_s) if score.task == "forecast" else "detection",
            f"{score.prevalence:.3g}",
            wording.estimate(score.auprc),
            wording.estimate(score.precision, 2),
            wording.recall(score),
            f"{score.f1:.2f}",
            interval_text(alarms.scaled(score.false_alarms_per_node_day)),
            "" if median is None else wording.duration(median),
        )
    return table


def _versus(scores: Iterable[ForecastScore]) -> Table:
    table = _table("Difference in AUPRC, at the same times", "predictor", "minus", "difference")
    for score in scores:
        for other, above in score.versus.items():
            table.add_row(escape(score.predictor), escape(other), wording.difference(above))
    return table


def _policies(policies: Iterable[ReplayedPolicy], alarms: AlarmUnit) -> Table:
    table = _table(
        "Policies, open loop",
        "policy", "proposals", "granted", "incidents found", f"false alarms {alarms.text}",
    )  # fmt: skip
    for policy in policies:
        table.add_row(
            escape(policy.policy),
            str(policy.proposals),
            str(policy.granted),
            f"{policy.incidents_found}/{policy.incidents}",
            f"{alarms.days * policy.false_alarms_per_node_day:.3g}",
        )
    return table


def _worth(simulation: Simulation) -> Table:
    table = _table(
        "Gain over the same job without the policies, in points",
        "arm", "gain", "proposed", "granted", "denied",
    )  # fmt: skip
    for arm in watched(simulation):
        if arm.kind in ("candidate", "oracle"):
            table.add_row(
                escape(arm.name),
                wording.gain(arm.versus_without),
                f"{arm.operations.proposed:.1f}",
                f"{sum(arm.operations.granted.values()):.1f}",
                f"{sum(arm.operations.denied.values()):.1f}",
                style=_STYLE_OF[arm.kind],
            )
    return table


def _allreduce(simulation: AllreduceSimulation) -> Table:
    table = _table(
        f"Time to the progress of {simulation.progress:,.6g} steps of mode none, over "
        f"{len(simulation.seeds)} seeds; speedup over {simulation.reference} in progress per hour",
        "arm", "seconds", "steps per hour", "speedup", "to oracle", "switches", "time per mode",
    )  # fmt: skip
    for arm in allreduce.ranked(simulation):
        table.add_row(
            escape(arm.name),
            "not reached" if arm.time_s is None else wording.estimate(arm.time_s, 1),
            wording.estimate(arm.progress_per_h, 0),
            allreduce.times(arm.speedup),
            "" if arm.to_oracle is None else f"{arm.to_oracle:.0%}",
            f"{arm.switches:.1f}",
            escape(allreduce.in_modes(arm)),
            style=_STYLE_OF[arm.kind],
        )
    return table


def _sweep(sweep: Sweep) -> Iterator[Table]:
    names = [sweep.name, *map(escape, sweep.lines)]
    goodput = _table(f"Goodput by {sweep.name}, with {sweep.beside}", *names)
    more = _table(
        f"Useful GPU-h per day added by one more, which costs {sweep.gpu_h_per_day:g}",
        *names,
    )
    for points in zip(*sweep.lines.values(), strict=True):
        value = str(points[0].value)
        goodput.add_row(value, *(wording.estimate(point.goodput) for point in points))
        added = [point.more_gpu_h_per_day for point in points]
        if None not in added:
            more.add_row(value, *(wording.estimate(one, 1) for one in added if one is not None))
    yield goodput
    yield more


def _arms(simulation: Simulation) -> Table:
    table = _table(
        f"Goodput over {len(simulation.seeds)} seeds, gain in points over {simulation.reference}",
        "arm", "goodput", "ETTR", "gain", "to oracle", "failures", "moves", "right",
    )  # fmt: skip
    for arm in ranked(simulation.arms):
        table.add_row(
            escape(arm.name),
            wording.estimate(arm.goodput),
            wording.estimate(arm.ettr),
            wording.gain(arm.versus_reference),
            "" if arm.to_oracle is None else f"{arm.to_oracle:.0%}",
            f"{arm.failures:.1f}",
            f"{arm.migrations:.1f}",
            f"{arm.right_moves:.1f}" if arm.moves else "",
            style=_STYLE_OF[arm.kind],
        )
        if arm.as_planned is not msgspec.UNSET:
            goodput, gain = arm.as_planned.goodput, arm.as_planned.versus_reference
            table.add_row("  as planned", wording.estimate(goodput), "", wording.gain(gain))
    return table
