"""Play the knobs demo with live progress; ``torchloom demo`` calls :func:`play_knobs`."""

import asyncio
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from torchloom_core.demos.folder import PLOT, RUN, SUMMARY
from torchloom_core.demos.knobs import report
from torchloom_core.demos.knobs.act import KnobsAct
from torchloom_core.demos.knobs.plot import draw
from torchloom_core.demos.knobs.record import changes_in
from torchloom_core.demos.knobs.script import SHOWN
from torchloom_core.demos.scenario import Training
from torchloom_core.live.trajectory.layout import run_folder


def play_knobs(training: Training, folder: Path, console: Console) -> report.Report:
    """Play the demo, print the report, and return it.

    Raises
    ------
    StateError
        If a process of the demo fails, or if a check of the demo fails.
    """
    act = KnobsAct(training, folder / RUN)
    _perform(act, console)
    shown = report_of(act)
    report.write_summary(folder / SUMMARY, shown, training.seed)
    draw(folder / PLOT, shown)
    console.print()
    report.show(console, shown)
    console.print(f"\ntrajectory  {run_folder(act.state_dir, 'demo')}")
    console.print(f"plot        {folder / PLOT}")
    console.print(f"summary     {folder / SUMMARY}")
    report.check(shown)
    return shown


def report_of(act: KnobsAct) -> report.Report:
    """Return the report of a finished act."""
    assert act.killed_at is not None
    return report.Report(changes_in(act.state_dir), act.logs, act.killed_at)


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
        last = log.steps[-1] if log.steps else None
        table.add_row(
            group,
            _condition(act, group),
            *(
                [str(last["step"]), str(last["participants"]), f"{last['loss']:.3f}"]
                if last
                else []
            ),
            *(str(last["knobs"][knob]) for knob in SHOWN if last),
        )
    return table


def _condition(act: KnobsAct, group: str) -> str:
    trainer = act.trainers.get(group)
    status = trainer.poll() if trainer else None
    if status is None:
        return "training" if act.logs[group].steps else "[dim]starting[/]"
    return "[red]killed[/]" if status else "[green]left[/]"
