"""Play the demo: the pipeline, its undisturbed run, and the experts with each answer."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from torchloom_core.demos.folder import PLOT, RUN, check_promises, show_files, write_summary
from torchloom_core.demos.mpmd.plot import draw
from torchloom_core.demos.mpmd.report import Report, show, summary_of
from torchloom_core.demos.mpmd.run import Run
from torchloom_core.demos.mpmd.script import EXPERTS, PIPELINE


def play_mpmd(seed: int, folder: Path, console: Console) -> Report:
    """Play the demo, print the report, and return it; StateError if a process or a check fails."""
    pipeline, *experts = (
        Run(replace(part, seed=seed), folder / RUN / part.name.replace("'s ", "-"))
        for part in (PIPELINE, *EXPERTS)
    )
    _perform(pipeline, pipeline.play, "pipeline: 2 replicas of 3 stages, 1 standby", console)
    for loss in pipeline.losses:
        text = f"  {loss.worker} killed after step {loss.step}: {loss.answer}"
        console.print(escape(text), highlight=False)
    _perform(pipeline, pipeline.play_undisturbed, "the same, undisturbed, in one process", console)
    for run in experts:
        _perform(run, run.play, f"8 experts on 4 workers: {run.part.name}", console)
        text = f"  {run.losses[0].worker} killed: {run.losses[0].answer}"
        console.print(escape(text), highlight=False)
    report = Report(pipeline, pipeline.undisturbed, experts)
    write_summary(folder, summary_of(report, seed))
    draw(folder / PLOT, report)
    console.print()
    show(console, report)
    console.print()
    show_files(console, folder)
    check_promises(report.promises())
    return report


def _perform(
    run: Run, play: Callable[[Callable[[], None]], None], title: str, console: Console
) -> None:
    console.print(escape(title), highlight=False)
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        play(lambda: live.update(_workers(run)))


def _workers(run: Run) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("worker", "", "step", "loss", "layers"):
        table.add_column(name)
    for name, log in run.logs.items():
        row = log.steps[-1] if log.steps else {}
        table.add_row(
            name,
            _condition(run, name, bool(row)),
            str(row.get("step", "")),
            f"{row['loss']:.3f}" if row else "",
            ", ".join(map(str, row.get("layers", ()))),
        )
    return table


def _condition(run: Run, name: str, has_trained: bool) -> str:
    if name in {loss.worker for loss in run.losses}:
        return "[red]killed[/]"
    return "training" if has_trained else "[dim]waits[/]"
