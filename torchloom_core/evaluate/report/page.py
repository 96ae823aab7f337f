"""A report as one HTML page: no script, nothing loaded from anywhere, the same bytes each time."""

from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import msgspec

from torchloom_core.clock import SECOND_NS
from torchloom_core.evaluate.goodput.compare import MIN_SEEDS
from torchloom_core.evaluate.goodput.sensitivity import SEEDS
from torchloom_core.evaluate.report import allreduce, forecast_plots, goodput_plots, wording
from torchloom_core.evaluate.report.findings import complaints, findings, flips, ranked, watched
from torchloom_core.evaluate.report.sweep import answers, sweep_plot
from torchloom_core.evaluate.results import Report, Simulation

_DAY_NS = 86_400 * SECOND_NS


def page_text(report: Report) -> str:
    """Return the HTML of a report."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    source = resources.files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8")
    # autoescape: names and reasons come from traces and from foreign plugins.
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    simulation = report.simulation
    return template.from_string(source).render(
        report=report,
        simulation=simulation,
        arms=ranked(simulation.arms) if simulation else (),
        watched=watched(simulation) if simulation else (),
        findings=findings(report),
        facts=list(_facts(report)),
        plots={name: Markup(svg) for name, svg in _plots(report).items()},
        flips=flips(simulation) if simulation else (),
        bounds=_bounds(simulation) if simulation else (),
        complaints=complaints(simulation) if simulation else (),
        answers=answers,
        links=allreduce,
        sections=list(_sections(report)),
        thresholds="; ".join(sorted({score.threshold_from for score in report.forecasts})),
        config=_pretty(report.config),
        job=_pretty(simulation.job) if simulation else "",
        trace=_pretty(report.trace),
        estimate=wording.estimate,
        gain=wording.gain,
        counts=wording.counts,
        min_seeds=MIN_SEEDS,
        swept=SEEDS,
        duration=wording.duration,
    )


def _plots(report: Report) -> dict[str, str]:
    drawn: dict[str, str] = {}
    if report.forecasts:
        drawn["curve"] = forecast_plots.curve_plot(report.forecasts)
        drawn["calibration"] = forecast_plots.calibration_plot(report.forecasts)
        drawn["lead"] = forecast_plots.lead_plot(report.forecasts)
        drawn["false_alarms"] = forecast_plots.false_alarm_plot(report.forecasts)
    if report.allreduce is not msgspec.UNSET:
        drawn["progress"] = allreduce.progress_plot(report.allreduce)
        drawn["modes"] = allreduce.mode_plot(report.allreduce)
    if report.simulation is not None:
        simulation = report.simulation
        drawn["goodput"] = goodput_plots.goodput_plot(simulation)
        drawn["buckets"] = goodput_plots.bucket_plot(simulation)
        drawn["timeline"] = goodput_plots.timeline_plot(simulation, report.trace["start_ns"])
        drawn["sensitivity"] = goodput_plots.sensitivity_plot(simulation)
        drawn["break_even"] = goodput_plots.break_even_plot(simulation)
        if simulation.sweep is not msgspec.UNSET:
            drawn["sweep"] = sweep_plot(simulation.sweep)
    return drawn


def _sections(report: Report) -> Iterator[tuple[str, str]]:
    yield "findings", "Findings"
    if report.allreduce is not msgspec.UNSET:
        yield "allreduce", "Time to progress"
    if report.simulation:
        yield "goodput", "Goodput"
        yield "time", "Where the rest goes"
        if any(run.timeline for run in report.simulation.runs):
            yield "timeline", "Faults and actions"
        yield "price", "What would turn it"
        if report.simulation.sweep is not msgspec.UNSET:
            yield "sweep", f"How many {report.simulation.sweep.name}"
    if report.forecasts:
        yield "forecasts", "Forecasts"
    if report.policies:
        yield "policies", "Policies"
    yield "assumptions", "Assumptions"


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    start_ns, end_ns = report.trace["start_ns"], report.trace["end_ns"]
    length = f"{(end_ns - start_ns) / _DAY_NS:.4g} days"
    if report.allreduce is not msgspec.UNSET:
        length = wording.duration((end_ns - start_ns) / SECOND_NS)
    yield "trace", f"{_date(start_ns)}, {length}"
    if report.allreduce is not msgspec.UNSET:
        yield "ranks", f"{report.allreduce.job['ranks']}"
        yield "runs an arm", f"{len(report.allreduce.seeds)}"
        yield "progress", f"{report.allreduce.progress:,.6g} steps of none"
    if report.simulation and report.simulation.runs:
        simulation = report.simulation
        run = simulation.runs[0]
        yield "GPUs of the job", f"{run.job_gpus:,}"
        yield "GPUs paid for", f"{run.gpus:,}"
        yield "simulated", f"{len(simulation.seeds)} x {wording.duration(run.wall_s)}"
        yield "break-even precision", f"{simulation.break_even.precision:.3g}"
    if report.forecasts:
        score = report.forecasts[0]
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
