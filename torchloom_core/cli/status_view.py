"""The run as tables on a terminal."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from torchloom_core.cli.output import span
from torchloom_core.clock import SECOND_NS
from torchloom_core.plain_text import printable
from torchloom_core.wire.operator import Status, WorkerStatus

_METRICS = 4
_LIKELY = 0.5
_WHOLE = 1e15
"""Up to here a whole number is a count or an id, of which no digit is left out."""

_STATE_STYLE = {
    "training": "green",
    "standby": "cyan",
    "joining": "cyan",
    "paused": "yellow",
    "draining": "yellow",
    "left": "dim",
    "drained": "dim",
    "finished": "dim",
    "interrupted": "dim",
    "terminated": "dim",
    "killed": "red",
    "failed": "red",
    "gone": "red",
    "silent": "red",
    "crash-looping": "bold red",
}


def render(status: Status, metrics: Sequence[str] = (), trouble: str = "") -> RenderableType:
    """Return everything a status says; ``trouble`` is why there is no newer one."""
    parts: list[RenderableType] = [_headline(status)]
    if trouble:
        parts.append(Panel(Text(f"{trouble}; this is what was known last"), style="red"))
    if status.stopped:
        text = "ACTIONS ARE STOPPED: nothing is done until `torchloom actions resume`"
        parts.append(Panel(Text(text), style="bold red"))
    if status.recording:
        parts.append(Panel(Text(f"recording is {status.recording}"), style="red"))
    parts += [Text(printable(loop.text), style="bold red") for loop in status.crash_loops]
    parts.append(_workers(status.workers, metrics))
    if status.cordoned:
        nodes = ", ".join(_cordon(node, status) for node in status.cordoned)
        parts.append(Text(f"cordoned, nobody new is put there: {nodes}", style="yellow"))
    if status.waiting:
        parts.append(_waiting(status))
    if status.knobs_waiting:
        parts.append(_knobs_waiting(status))
    if status.flights:
        parts.append(_flights(status))
    if status.plugins:
        parts.append(_plugins(status))
    if status.lighthouse:
        parts.append(Text(f"lighthouse: {status.lighthouse}"))
    if status.trajectory:
        parts.append(Text(f"trajectory: {status.trajectory}", style="dim"))
    return Group(*parts)


def _cordon(node: str, status: Status) -> str:
    until_ns = status.cordoned_until_ns.get(node)
    if until_ns is None:
        return node
    return f"{node} for {span((until_ns - status.ts_ns) / SECOND_NS)}"


def _headline(status: Status) -> Text:
    training = sum(_state(worker) == "training" for worker in status.workers)
    text = Text.assemble(
        (f"run {status.run}", "bold"),
        f"  epoch {status.epoch}  tick {status.ticks}  "
        f"{training} of {len(status.workers)} workers training",
    )
    if status.dry_run:
        text.append("  dry run: nothing is sent", "yellow")
    if status.malformed:
        text.append(f"  {status.malformed} malformed messages", "yellow")
    return text


def _workers(workers: Sequence[WorkerStatus], wanted: Sequence[str]) -> Table:
    known = sorted({name for worker in workers for name in worker.metrics})
    metrics = list(wanted) or known[:_METRICS]
    hazards = any(worker.hazards for worker in workers)
    knobs = any(worker.knobs for worker in workers)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("worker", overflow="fold")
    table.add_column("node", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("step age", justify="right", overflow="fold")
    table.add_column("heard", justify="right", no_wrap=True)
    if hazards:
        table.add_column("hazard", justify="right", overflow="fold")
    if knobs:
        table.add_column("knobs", overflow="fold")
    for metric in metrics:
        table.add_column(escape(metric), justify="right", no_wrap=True)
    for worker in workers:
        table.add_row(
            escape(worker.worker),
            escape(worker.node),
            Text(_state(worker), _STATE_STYLE.get(_state(worker), "")),
            str(worker.step) if worker.step >= 0 else "-",
            span(worker.progress_age_s),
            span(worker.heartbeat_age_s),
            *([_hazard(worker)] if hazards else []),
            *([escape(_values(worker))] if knobs else []),
            *(_number(worker.metrics.get(metric)) for metric in metrics),
        )
    return table


def _values(worker: WorkerStatus) -> str:
    return printable(" ".join(f"{name}={value}" for name, value in worker.knobs.items()))


def _state(worker: WorkerStatus) -> str:
    """Return where the worker is in its life, or how that ended."""
    return worker.ending or worker.state


def _hazard(worker: WorkerStatus) -> Text:
    """Return the worst that any predictor says."""
    if not worker.hazards:
        return Text("-")
    predictor, hazard = max(worker.hazards.items(), key=lambda item: item[1])
    return Text(f"{hazard:.0%} {predictor}", "bold red" if hazard >= _LIKELY else "")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value.is_integer() and abs(value) < _WHOLE else f"{value:.4g}"


def _waiting(status: Status) -> Table:
    table = Table("waits for approval", "policy", "wants", "reason", box=None)
    for w in status.waiting:
        table.add_row(*map(escape, (w.proposal, w.policy, w.wish, w.reason)))
    table.columns[0].style = "bold yellow"
    return table


def _knobs_waiting(status: Status) -> Text:
    values = ", ".join(
        f"{wish.knob} = {wish.value}{f' of {wish.worker}' if wish.worker else ''} "
        f"(set {span((status.ts_ns - wish.since_ns) / SECOND_NS)} ago)"
        for wish in status.knobs_waiting
    )
    text = (
        f"set in an earlier job, not in this one: {printable(values)}; "
        "torchloom knob take sets it here, torchloom knob drop drops it"
    )
    return Text(text, style="yellow")


def _flights(status: Status) -> Table:
    table = Table("in flight", "worker", "verb", "status", "age", box=None)
    for flight in status.flights:
        texts = (flight.id, flight.worker, flight.verb, flight.status)
        table.add_row(*map(escape, texts), span(flight.age_s))
    more = status.flights_in_all - len(status.flights)
    if more > 0:
        table.add_row(f"and {more} more")
    return table


def _plugins(status: Status) -> Table:
    table = Table("plugin", "kind", "state", "", box=None)
    for plugin in status.plugins:
        is_held = plugin.state == "dry_run" and plugin.detail
        style = "red" if plugin.state == "quarantined" else "yellow" if is_held else ""
        table.add_row(
            escape(plugin.name), plugin.kind, Text(plugin.state, style), escape(plugin.detail)
        )
    return table
