"""Play the knobs demo with live progress; ``torchloom demo`` calls :func:`play_knobs`."""

import asyncio
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from torchloom_core.demos.folder import PLOT, RUN
from torchloom_core.demos.knobs import report
from torchloom_core.demos.knobs.act import KnobsAct
from torchloom_core.demos.knobs.changes import changes_in
from torchloom_core.demos.knobs.plot import draw
from torchloom_core.demos.knobs.script import SHOWN
from torchloom_core.demos.results import check_promises, show_files, write_summary
from torchloom_core.demos.scenario import Training


def play_knobs(training: Training, folder: Path, console: Console) -> report.Report:
    """Play the demo, print the report, and return it; StateError if a process or a check fails."""
    act = KnobsAct(training, folder / RUN)
    _perform(act, console)
    shown = report.Report(changes_in(act.processes.trajectory), act.logs, act.killed_at)
    write_summary(folder, report.summary_of(shown, training.seed))
    draw(folder / PLOT, shown)
    console.print()
    report.show(console, shown)
    console.print()
    show_files(console, folder, act.processes.trajectory)
    check_promises(shown.promises())
    return shown


def _perform(act: KnobsAct, console: Console) -> None:
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        asyncio.run(
            act.play(
                show=lambda: live.update(_groups(act)),
                say=lambda text: console.print(escape(text), highlight=False),
            )
        )


def _groups(act: KnobsAct) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("group", "", "step", "participants", "loss", *SHOWN):
        table.add_column(name)
    for group, log in act.logs.items():
        cells = [group, _condition(act, group)]
        for last in log.steps[-1:]:
            cells += [str(last["step"]), str(last["participants"]), f"{last['loss']:.3f}"]
            cells += [str(last["knobs"][knob]) for knob in SHOWN]
        table.add_row(*cells)
    return table


def _condition(act: KnobsAct, group: str) -> str:
    trainer = act.trainers.get(group)
    status = trainer.poll() if trainer else None
    if status is None:
        return "training" if act.logs[group].steps else "[dim]starting[/]"
    return "[red]killed[/]" if status else "[green]left[/]"
