"""Play the act: a job trains, its nodes and processes are killed, and it is restored each time."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from torchloom_core.checkpoints.layout import Folder
from torchloom_core.demos.checkpoints import report
from torchloom_core.demos.checkpoints.incidents import (
    Incident,
    Moment,
    Save,
    first_rows,
    moment,
    newest_step,
)
from torchloom_core.demos.checkpoints.job import Job
from torchloom_core.demos.checkpoints.plot import draw
from torchloom_core.demos.checkpoints.script import (
    LAST_S,
    SAVES,
    SCRIPT,
    SETTLE_S,
    Fault,
)
from torchloom_core.demos.folder import PLOT, RUN, check_promises, show_files, write_summary
from torchloom_core.demos.processes import Processes
from torchloom_core.demos.scenario import Training
from torchloom_core.demos.steplog import StepLog
from torchloom_core.floor.errors import StateError
from torchloom_core.wire.checkpoint_tiers import MEMORY, PATH, REMOTE, TIERS

_WAIT_S = 120.0
_LOOK_S = 0.1


class CheckpointsAct:
    """One run in a folder.

    Attributes
    ----------
    incidents : list of Incident
        The failures so far.
    saves : list of Save
        The checkpoints that were complete, by tier.
    undisturbed : list of StepLog
        The steps of the undisturbed run, once it has been made.
    """

    def __init__(self, training: Training, folder: Path) -> None:
        self.processes = Processes(folder, training)
        self.job = Job(self.processes, training)
        self.incidents: list[Incident] = []
        self.complete: dict[str, set[Folder]] = {tier: set() for tier in TIERS}
        self.undisturbed = [
            StepLog(folder / f"undisturbed-{rank}.jsonl") for rank in range(len(self.job.ranks))
        ]
        self.state = "starting"
        self._saves: dict[tuple[str, Folder], Save] = {}
        self._show: Callable[[], None] = lambda: None
        self._say: Callable[[str], None] = lambda _: None

    @property
    def saves(self) -> list[Save]:
        """The checkpoints, by when they were complete."""
        return list(self._saves.values())

    async def play(self, show: Callable[[], None], say: Callable[[str], None]) -> None:
        """Play the act; ``show`` is called several times a second, ``say`` with each new line."""
        self._show, self._say = show, say
        async with self.processes.weaver(acting=True):
            self.job.start()
            await self._until(lambda: self._all_train(set()), "all ranks train")
            for number, fault in enumerate(SCRIPT, 1):
                self.state = "training"
                await self._until(lambda: self._is_ready(fault), f"failure {number}")  # noqa: B023
                await self._suffer(fault, number)
            self.state, end_s = "training", time.monotonic() + LAST_S
            await self._until(lambda: time.monotonic() > end_s, "the last steps")
            self.job.leave()
            await self._until(lambda: self.job.has_ended, "the job has ended", ends=True)
        self.state = "an undisturbed run, to compare"
        await self._play_undisturbed()

    def _is_ready(self, fault: Fault) -> bool:
        """Return whether memory has the newest checkpoint, after enough saves, and none runs."""
        newest = {tier: newest_step(folders) for tier, folders in self.complete.items()}
        in_order = newest[MEMORY] >= max(newest[PATH] + 1, newest[REMOTE] + fault.apart)
        if len(fault.ranks) > 1:
            in_order = in_order and newest[PATH] > newest[REMOTE]
        last = self.job.ranks[0].steps[-1]
        since = self.incidents[-1].back_at if self.incidents else 0.0
        saved = [save.at for save in self.saves if save.tier == MEMORY and save.at > since]
        settled = len(saved) >= SAVES and time.time() > saved[SAVES - 1] + SETTLE_S
        return newest[REMOTE] >= 0 and in_order and settled and not last["saving"]

    async def _suffer(self, fault: Fault, number: int) -> None:
        """Have the job fail, and wait until it trains again."""
        text, pids = fault.text(self.job.nodes), self.job.pids()
        before = moment(time.time(), self.job.ranks, self.complete)
        self.job.fail(fault)
        self.state = f"failure {number}: {text}"
        self._say(f"failure {number} after step {before.step}: {text}")
        held = self.job.complete()

        def is_back() -> bool:
            for tier, folders in self.complete.items():
                held[tier] |= folders
            return self._all_train(pids)

        await self._until(is_back, f"recovery {number}")
        self.incidents.append(self._incident(text, before, pids, held))
        self._say(f"  {report.restored_text(self.incidents[-1])}")

    def _incident(
        self, text: str, before: Moment, pids: set[int], held: dict[str, set[Folder]]
    ) -> Incident:
        rows = first_rows(self.job.ranks, pids)
        from_step = rows[0]["from"]
        having = (tier for tier in TIERS if from_step in {one.step for one in held[tier]})
        return Incident(text, before, from_step, tuple(having), max(row["t"] for row in rows))

    async def _play_undisturbed(self) -> None:
        last = max(row["step"] for log in self.job.ranks for row in log.steps)
        process = self.job.start_undisturbed(last + 1)
        deadline = time.monotonic() + _WAIT_S
        while process.poll() is None and time.monotonic() < deadline:
            self._show()
            await asyncio.sleep(_LOOK_S)
        if process.poll() != 0:
            raise StateError(f"the undisturbed run failed; see {self.processes.folder}")
        for log in self.undisturbed:
            log.read()

    async def _until(self, holds: Callable[[], bool], what: str, *, ends: bool = False) -> None:
        """Wait; StateError if the job ends, unless it ``ends`` now, or after two minutes."""
        deadline, folder = time.monotonic() + _WAIT_S, self.processes.folder
        while True:
            self.processes.read_logs()
            self._look()
            self._show()
            if holds():
                return
            if self.job.has_ended and not ends:
                raise StateError(f"the job has ended, waiting for: {what}; see {folder}")
            if time.monotonic() > deadline:
                raise StateError(f"after {_WAIT_S:g} s still waiting for: {what}; see {folder}")
            await asyncio.sleep(_LOOK_S)

    def _look(self) -> None:
        """Look which checkpoints are complete."""
        self.complete = self.job.complete()
        for tier, folders in self.complete.items():
            for folder in sorted(folders):
                self._saves.setdefault((tier, folder), Save(tier, folder, time.time()))

    def _all_train(self, before: set[int]) -> bool:
        return len(first_rows(self.job.ranks, before)) == len(self.job.ranks)


def play_checkpoints(training: Training, folder: Path, console: Console) -> report.Report:
    """Play the demo, print the report, and return it; StateError if a process or a check fails."""
    act = CheckpointsAct(training, folder / RUN)
    _perform(act, console)
    trajectory = act.processes.trajectory
    shown = report.Report(
        act.incidents,
        act.saves,
        act.job.ranks,
        act.undisturbed,
        report.Recorded.read(trajectory),
    )
    write_summary(folder, report.summary_of(shown, training.seed))
    draw(folder / PLOT, shown)
    console.print()
    report.show(console, shown)
    console.print()
    show_files(console, folder, trajectory)
    check_promises(shown.promises())
    return shown


def _perform(act: CheckpointsAct, console: Console) -> None:
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        asyncio.run(
            act.play(
                show=lambda: live.update(Group(_ranks(act), "", _tiers(act))),
                say=lambda text: console.print(escape(text), highlight=False),
            )
        )


def _ranks(act: CheckpointsAct) -> Table:
    table = Table(
        title=act.state, title_justify="left", box=None, pad_edge=False, header_style="dim"
    )
    for name in ("rank", "node", "step", "loss"):
        table.add_column(name)
    for rank, log in enumerate(act.job.ranks):
        cells = [str(rank), act.job.nodes[rank]]
        for last in log.steps[-1:]:
            cells += [str(last["step"]), f"{last['loss']:.3f}"]
        table.add_row(*cells)
    return table


def _tiers(act: CheckpointsAct) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("tier", "saves", "newest step", "saves every"):
        table.add_column(name)
    rows = act.job.ranks[0].steps[-1:]
    for tier in TIERS:
        step = newest_step(act.complete[tier])
        every = [f"{row['every_s'][tier]:.1f} s" for row in rows]
        saves = sum(save.tier == tier for save in act.saves)
        table.add_row(tier, str(saves), "" if step < 0 else str(step), *every)
    return table
