"""Render a report as one HTML page: no script, no external resources, deterministic."""

from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import msgspec

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.evaluate.goodput.compare import MIN_SEEDS
from torchloom_core.lab.evaluate.goodput.study import COST_SEEDS
from torchloom_core.lab.evaluate.report import (
    allreduce,
    fleets,
    plots,
    wording,
)
from torchloom_core.lab.evaluate.report.findings import findings, flips, ranked, warnings, watched
from torchloom_core.lab.evaluate.report.sweep import recommendations, sweep_plot
from torchloom_core.lab.evaluate.results import Report, Simulation, TraceResults
from torchloom_core.lab.learning.card import interval_text

_DAY_NS = 86_400 * SECOND_NS


def page_text(report: Report) -> str:
    """Return the HTML of a report."""
    from jinja2 import Environment, StrictUndefined

    source = resources.files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8")
    # autoescape: names and reasons come from traces and from foreign plugins.
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    several = report.fleets is not msgspec.UNSET
    parts = [
        _part(results, f"t{number}-" if several else "")
        for number, results in enumerate(report.traces, 1)
    ]
    return template.from_string(source).render(
        report=report,
        title=", ".join(results.name for results in report.traces),
        parts=parts,
        fleets=_fleets(report),
        several=several,
        recommendations=recommendations,
        links=allreduce,
        interval_text=interval_text,
        estimate=wording.estimate,
        difference=wording.difference,
        gain=wording.gain,
        recall=wording.recall,
        counts=wording.counts,
        min_seeds=MIN_SEEDS,
        swept=COST_SEEDS,
        duration=wording.duration,
    )


def _fleets(report: Report) -> dict[str, Any]:
    """Return the section over all traces, empty for one trace."""
    if report.fleets is msgspec.UNSET:
        return {}
    return {
        "findings": fleets.findings(report.fleets),
        "listings": list(fleets.listings(report)),
        "plots": [_markup(svg) for svg in fleets.plots(report)],
    }


def _part(results: TraceResults, at: str) -> dict[str, Any]:
    """Return the sections of one trace; ``at`` is the prefix of its anchors, unique per trace."""
    simulation = results.simulation
    return {
        "at": at,
        "results": results,
        "simulation": simulation,
        "arms": ranked(simulation.arms) if simulation else (),
        "watched": watched(simulation) if simulation else (),
        "findings": findings(results),
        "facts": list(_facts(results)),
        "plots": {name: _markup(svg) for name, svg in _plots(results).items()},
        "flips": flips(simulation) if simulation else (),
        "bounds": _bounds(simulation) if simulation else (),
        "warnings": warnings(simulation) if simulation else (),
        "sections": list(_sections(results)),
        "thresholds": "; ".join(sorted({score.threshold_from for score in results.forecasts})),
        "config": _pretty(results.config),
        "job": _pretty(simulation.job) if simulation else "",
        "trace": _pretty(results.trace),
        "forecast_alarms": wording.forecast_alarms([results]),
        "policy_alarms": wording.policy_alarms(results),
    }


def _markup(svg: str) -> Any:
    from markupsafe import Markup

    return Markup(svg)


def _plots(results: TraceResults) -> dict[str, str]:
    drawn: dict[str, str] = {}
    if results.forecasts:
        drawn["curve"] = plots.curve_plot(results.forecasts)
        drawn["calibration"] = plots.calibration_plot(results.forecasts)
        drawn["lead"] = plots.lead_plot(results.forecasts)
        drawn["false_alarms"] = plots.false_alarm_plot(
            results.forecasts, wording.forecast_alarms([results])
        )
    if results.allreduce is not msgspec.UNSET:
        drawn["progress"] = allreduce.progress_plot(results.allreduce)
        drawn["modes"] = allreduce.mode_plot(results.allreduce)
    if results.simulation is not None:
        simulation = results.simulation
        drawn["goodput"] = plots.goodput_plot(simulation)
        drawn["buckets"] = plots.bucket_plot(simulation)
        drawn["timeline"] = plots.timeline_plot(simulation, results.trace["start_ns"])
        drawn["sensitivity"] = plots.sensitivity_plot(simulation)
        drawn["break_even"] = plots.break_even_plot(simulation)
        if simulation.sweep is not msgspec.UNSET:
            drawn["sweep"] = sweep_plot(simulation.sweep)
    return drawn


def _sections(results: TraceResults) -> Iterator[tuple[str, str]]:
    yield "findings", "Findings"
    if results.allreduce is not msgspec.UNSET:
        yield "allreduce", "Time to progress"
    if results.simulation:
        yield "goodput", "Goodput"
        yield "time", "Lost time"
        if any(run.timeline for run in results.simulation.runs):
            yield "timeline", "Faults and actions"
        yield "price", "Sensitivity"
        if results.simulation.sweep is not msgspec.UNSET:
            yield "sweep", f"Number of {results.simulation.sweep.name}"
    if results.forecasts:
        yield "forecasts", "Forecasts"
    if results.policies:
        yield "policies", "Policies"
    yield "assumptions", "Assumptions"


def _facts(results: TraceResults) -> Iterator[tuple[str, str]]:
    start_ns, end_ns = results.trace["start_ns"], results.trace["end_ns"]
    length = f"{(end_ns - start_ns) / _DAY_NS:.4g} days"
    if results.allreduce is not msgspec.UNSET:
        length = wording.duration((end_ns - start_ns) / SECOND_NS)
    yield "trace", f"{_date(start_ns)}, {length}"
    if results.allreduce is not msgspec.UNSET:
        yield "ranks", f"{results.allreduce.job['ranks']}"
        yield "runs per arm", f"{len(results.allreduce.seeds)}"
        yield "progress", f"{results.allreduce.progress:,.6g} steps of mode none"
    if results.simulation and results.simulation.runs:
        simulation = results.simulation
        run = simulation.runs[0]
        yield "GPUs of the job", f"{run.job_gpus:,}"
        yield "GPUs paid for", f"{run.gpus:,}"
        yield "simulated", f"{len(simulation.seeds)} x {wording.duration(run.wall_s)}"
        yield "break-even precision", f"{simulation.break_even.precision:.3g}"
    if results.forecasts:
        score = results.forecasts[0]
        yield "scored", f"{_date(score.from_ns)} to {_date(score.until_ns)}"
        yield "prevalence", f"{score.prevalence:.3g}"
        yield "incidents", f"{score.incidents}"


def _date(ts_ns: int) -> str:
    return datetime.fromtimestamp(ts_ns / SECOND_NS, tz=UTC).strftime("%Y-%m-%d")


def _bounds(simulation: Simulation) -> list[list[str]]:
    ways = [{arm.name: arm.goodput for arm in arms} for arms in simulation.unknown_follows.values()]
    names = sorted({name for way in ways for name in way})
    return [
        [name, *(wording.estimate(way[name]) if name in way else "" for way in ways)]
        for name in names
    ]


def _pretty(value: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=2).decode()
