"""The workers of a run on the terminal: their numbers by state, and a table."""

from collections import Counter
from collections.abc import Sequence

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from torchloom_core.cli.output import span
from torchloom_core.floor.plain_text import printable
from torchloom_core.wire.status import Status, WorkerStatus

_METRICS = 4
_LIKELY = 0.5
_WHOLE = 1e15
"""Whole numbers below this are counts or IDs, printed with all digits."""

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


def training_of(status: Status) -> str:
    """Return how many workers train, of each role if there are several."""
    roles: dict[str, Counter[str]] = {role: Counter(own) for role, own in status.counts.items()}
    if not roles:
        for worker in status.workers:
            roles.setdefault(worker.role, Counter())[_state(worker)] += 1
    if len(roles) < 2:
        own = sum(roles.values(), Counter())
        return f"{own['training']} of {own.total()} workers training"
    counts = (
        f"{own['training']} of {own.total()} {printable(role)}" for role, own in roles.items()
    )
    return f"{' and '.join(counts)} workers training"


def summary_of(status: Status) -> list[RenderableType]:
    """Return how many workers of each role are in which state."""
    lines: list[RenderableType] = []
    for role, states in status.counts.items():
        text = Text(f"{printable(role)}: ")
        for number, (state, count) in enumerate(states.items()):
            text.append(", " if number else "")
            text.append(f"{count:,} {printable(state)}", _STATE_STYLE.get(state, ""))
        lines.append(text)
    lines.append(Text(f"{status.groups:,} replica groups train; --workers lists the workers"))
    what = "workers to look at" if status.unusual else "no worker fails, stalls or is at risk"
    return [*lines, Text(what, "bold" if status.unusual else "dim")]


def worker_table(workers: Sequence[WorkerStatus], wanted: Sequence[str]) -> Table:
    """Return a row of each worker; ``wanted`` are the metrics shown, the first four if empty."""
    names = sorted({name for worker in workers for name in worker.metrics})
    metrics = list(wanted) or names[:_METRICS]
    hazards = any(worker.hazards for worker in workers)
    knobs = any(worker.knobs for worker in workers)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("worker", overflow="fold")
    if several := len({(worker.role, worker.stage) for worker in workers}) > 1:
        table.add_column("role", overflow="fold")
    table.add_column("node", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("step age", justify="right", overflow="fold")
    table.add_column("seen", justify="right", no_wrap=True)
    if hazards:
        table.add_column("risk", justify="right", overflow="fold")
    if knobs:
        table.add_column("knobs", overflow="fold")
    for metric in metrics:
        table.add_column(escape(metric), justify="right", no_wrap=True)
    for worker in workers:
        table.add_row(
            escape(worker.worker),
            *([_role(worker)] if several else []),
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


def _role(worker: WorkerStatus) -> str:
    """Return the role, and the stage of a pipeline."""
    return escape(f"{worker.role} {worker.stage}" if worker.stage else worker.role)


def _values(worker: WorkerStatus) -> str:
    return printable(" ".join(f"{name}={value}" for name, value in worker.knobs.items()))


def _state(worker: WorkerStatus) -> str:
    """Return the worker's state, or how its process ended."""
    return worker.ending or worker.state


def _hazard(worker: WorkerStatus) -> Text:
    """Return the highest failure probability, and its predictor."""
    if not worker.hazards:
        return Text("-")
    predictor, hazard = max(worker.hazards.items(), key=lambda item: item[1])
    return Text(f"{hazard:.0%} {predictor}", "bold red" if hazard >= _LIKELY else "")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value.is_integer() and abs(value) < _WHOLE else f"{value:.4g}"
