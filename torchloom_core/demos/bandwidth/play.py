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
from torchloom_core.demos.folder import PLOT, SUMMARY
from torchloom_core.demos.scenario import Training
from torchloom_core.live.trajectory.layout import run_folder


def play_bandwidth(training: Training, folder: Path, console: Console) -> report.Report:
    """Run both acts, report, and return the report.

    Raises
    ------
    StateError
        If a process of the demo fails, or if a check of the demo fails.
    """
    acts = []
    for arm in ARMS:
        acts.append(BandwidthAct(training, arm, folder / arm.folder))
        _perform(acts[-1], console)
    shown = report.Report(*map(report.ArmFigures.of, acts))
    report.write_summary(folder / SUMMARY, shown, training.seed)
    draw(folder / PLOT, shown)
    console.print()
    report.show(console, shown)
    for act in acts:
        console.print(f"trajectory  {run_folder(act.state_dir, 'demo')}")
    console.print(f"plot        {folder / PLOT}")
    console.print(f"summary     {folder / SUMMARY}")
    report.check(shown)
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
        last = log.steps[-1] if log.steps else None
        table.add_row(
            group,
            *(
                [
                    str(last["step"]),
                    f"{last['loss']:.3f}",
                    f"{last['duration_s'] * 1000:.0f} ms",
                    f"{last['sent_bytes'] / 1000:.0f} kB",
                    str(last["knobs"]["compression"]),
                ]
                if last
                else []
            ),
        )
    return table
