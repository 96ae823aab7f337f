"""Play both acts with live progress; ``torchloom demo`` calls :func:`play`."""

import asyncio
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from torchloom_core.demos import report
from torchloom_core.demos.act import Act
from torchloom_core.demos.folder import ACTS, PLOT, show_files, write_summary
from torchloom_core.demos.scenario import Scenario


def play(scenario: Scenario, folder: Path, console: Console) -> None:
    """Play a scenario without torchLoom's actions and with them, and report."""
    acts = (
        Act(scenario, folder / ACTS[0], acting=False),
        Act(scenario, folder / ACTS[1], acting=True),
    )
    for act in acts:
        _perform(act, console)
    write_summary(folder, report.summary_of_acts(*acts))
    report.draw(folder / PLOT, *acts)
    console.print()
    report.show_table(console, *acts)
    console.print()
    show_files(console, folder, acts[1].processes.trajectory)


def _perform(act: Act, console: Console) -> None:
    title = "with torchLoom" if act.acting else "torchft alone (torchLoom only watches)"
    bars = Progress(
        TextColumn(f"[bold]{title}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )
    bar = bars.add_task("steps", total=act.scenario.steps)
    with Live(console=console, refresh_per_second=8, transient=not console.is_terminal) as live:

        def show(playing: Act) -> None:
            step = max(playing.logs[group].step for group in playing.scenario.survivors)
            bars.update(bar, completed=max(0, step))
            live.update(Group(bars, _workers(playing)))

        asyncio.run(act.play(show))


def _workers(act: Act) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("group", "node", "", "step", "participants", "loss"):
        table.add_column(name)
    for place in act.scenario.places:
        log, trainer = act.logs[place.group], act.trainers.get(place.group)
        last = log.steps[-1] if log.steps else {}
        table.add_row(
            place.group,
            place.node,
            _condition(act, place.group, trainer.poll() if trainer else None),
            str(log.step) if last else "",
            str(last.get("participants", "")),
            f"{last['loss']:.3f}" if last else "",
        )
    return table


def _condition(act: Act, group: str, status: int | None) -> str:
    failing = group == act.scenario.failing.group and act.degraded_at is not None
    if act.is_frozen(group):
        return "[red]frozen[/]"
    if status == 0:
        return "[green]left[/]"
    if status is not None:
        return "[red]killed[/]"
    if not act.logs[group].steps:
        waits = any(place.group == group and place.standby for place in act.scenario.places)
        return "[cyan]standby[/]" if waits else "[dim]starting[/]"
    return "[yellow]training, ECC errors[/]" if failing and not act.scenario.freezes else "training"
