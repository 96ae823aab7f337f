"""Play both acts: three groups train while their links become slow, then fast again."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from torchloom_core.demos.bandwidth import report
from torchloom_core.demos.bandwidth.links import links_for
from torchloom_core.demos.bandwidth.phases import ARMS, SCRIPT, Arm
from torchloom_core.demos.folder import PLOT, check_promises, show_files, write_summary
from torchloom_core.demos.processes import START_S, Processes
from torchloom_core.demos.scenario import Training
from torchloom_core.floor.errors import StateError

_FIRST_STEPS = 10


class BandwidthAct:
    """One run in its own folder.

    ``began`` has the start of each phase of the script, and the end of the last, s since the epoch.
    """

    def __init__(self, training: Training, arm: Arm, folder: Path) -> None:
        self._training, self.arm = training, arm
        self.links = links_for(folder, len(training.places))
        self.processes = Processes(folder, training, self.links)
        self.logs = self.processes.logs
        self.began: list[float] = []

    async def play(self, show: Callable[[], None]) -> None:
        """Play the act to its end; ``show`` is called several times a second."""
        with self.links.running():
            self.links.set_rate(SCRIPT[0].mbit)
            async with self.processes.weaver(acting=True, changed=self._config):
                for place in self._training.places:
                    self.processes.start_trainer(place, {})
                await self._until_all_train(show)
                for phase in SCRIPT:
                    self.links.set_rate(phase.mbit)
                    self.began.append(time.time())
                    await self._for(phase.seconds, show)
                self.began.append(time.time())
        self.processes.read_logs()
        show()

    def _config(self, text: str) -> str:
        return text if self.arm.tuned else text.replace('mode = "act"', 'mode = "shadow"')

    async def _until_all_train(self, show: Callable[[], None]) -> None:
        deadline = time.monotonic() + START_S
        while not self.processes.all_train(_FIRST_STEPS):
            if time.monotonic() > deadline:
                folder = self.processes.folder
                raise StateError(f"not all groups train after {START_S:g} s; see {folder}")
            await self._for(0.1, show)

    async def _for(self, seconds: float, show: Callable[[], None]) -> None:
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            for group in self.logs:
                self.processes.check(group)
            self.processes.read_logs()
            show()
            await asyncio.sleep(min(0.1, left_s))


def play_bandwidth(training: Training, folder: Path, console: Console) -> report.Report:
    """Run both acts, report, and return the report; StateError if a process or a check fails."""
    acts = []
    for arm in ARMS:
        acts.append(BandwidthAct(training, arm, folder / arm.folder))
        _perform(acts[-1], console)
    arms = (report.ArmFigures(a.arm.title, a.links.text, a.logs, a.began) for a in acts)
    shown = report.Report(*arms)
    write_summary(folder, report.summary_of(shown, training.seed))
    report.draw(folder / PLOT, shown)
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
