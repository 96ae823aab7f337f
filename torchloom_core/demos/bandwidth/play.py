"""Play both acts with live progress; ``torchloom demo`` calls :func:`play_bandwidth`."""

import asyncio
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from torchloom_core.demos.bandwidth import report
from torchloom_core.demos.bandwidth.act import BandwidthAct
from torchloom_core.demos.bandwidth.plot import draw
from torchloom_core.demos.bandwidth.script import ARMS, SCRIPT
from torchloom_core.demos.folder import PLOT
from torchloom_core.demos.results import check_promises, show_files, write_summary
from torchloom_core.demos.scenario import Training


def play_bandwidth(training: Training, folder: Path, console: Console) -> report.Report:
    """Run both acts, report, and return the report; StateError if a process or a check fails."""
    acts = []
    for arm in ARMS:
        acts.append(BandwidthAct(training, arm, folder / arm.folder))
        _perform(acts[-1], console)
    arms = (report.ArmFigures(a.arm.title, a.links.text, a.logs, a.began) for a in acts)
    shown = report.Report(*arms)
    write_summary(folder, report.summary_of(shown, training.seed))
    draw(folder / PLOT, shown)
    console.print()
    report.show(console, shown)
    show_files(console, folder, *(act.processes.trajectory for act in acts))
    check_promises(shown.promises())
    return shown


def _perform(act: BandwidthAct, console: Console) -> None:
    console.print(f"[bold]{act.arm.title}[/]: {act.links.text}", highlight=False)
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        asyncio.run(act.play(show=lambda: live.update(_groups(act))))


def _groups(act: BandwidthAct) -> Table:
    title = "starting"
    if act.began:
        phase = SCRIPT[min(len(act.began), len(SCRIPT)) - 1]
        seconds = time.time() - act.began[-1]
        title = f"links: {phase.text}, {min(seconds, phase.seconds):.0f} of {phase.seconds:g} s"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="dim")
    for name in ("group", "step", "loss", "step time", "bytes sent", "compression"):
        table.add_column(name)
    for group, log in act.logs.items():
        cells = [group]
        for last in log.steps[-1:]:
            cells += [str(last["step"]), f"{last['loss']:.3f}"]
            cells += [f"{last['duration_s'] * 1000:.0f} ms", f"{last['sent_bytes'] / 1000:.0f} kB"]
            cells += [str(last["knobs"]["compression"])]
        table.add_row(*cells)
    return table
