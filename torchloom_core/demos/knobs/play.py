"""Play the act: three groups train while their knobs change, and one group is killed."""

import asyncio
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from torchloom_core.cli.options import Connection
from torchloom_core.cli.weaver_client import fetch_knobs, open_client, send
from torchloom_core.demos.folder import PLOT, RUN, check_promises, show_files, write_summary
from torchloom_core.demos.knobs import report
from torchloom_core.demos.knobs.changes import changes_in
from torchloom_core.demos.knobs.script import SCRIPT, SHOWN, VICTIM, Change, ending
from torchloom_core.demos.processes import START_S, Processes
from torchloom_core.demos.scenario import Training
from torchloom_core.floor.errors import StateError
from torchloom_core.wire.capabilities import from_json
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.decisions import CommandStatus, Judged, Outcome
from torchloom_core.wire.operator import Answer
from torchloom_core.wire.requests import GUARD

if TYPE_CHECKING:
    from torchloom_core.live.transport import ControlClient

_FIRST_STEPS = 30
_TOGETHER_STEPS = 15
_JUDGEMENTS = {True: "worse", False: "not worse", None: "not judged"}

_T = TypeVar("_T")

Report = CommandStatus | Outcome | Judged


class KnobsAct:
    """One run in a folder, and the changes of its knobs.

    ``killed_at`` is when the victim was killed, s since the epoch, 0 before.
    """

    def __init__(self, training: Training, folder: Path) -> None:
        self._training = training
        self.processes = Processes(folder, training)
        self.logs, self.trainers = self.processes.logs, self.processes.trainers
        self.killed_at = 0.0
        self._is_away = False
        self._reports: list[Report] = []
        self._client: ControlClient
        self._show: Callable[[], None] = lambda: None
        self._say: Callable[[str], None] = lambda _: None

    async def play(self, show: Callable[[], None], say: Callable[[str], None]) -> None:
        """Play the act; ``show`` is called several times a second, ``say`` with each new line."""
        self._show, self._say = show, say
        async with self.processes.weaver(acting=True):
            for place in self._training.places:
                self.processes.start_trainer(place, {})
            await self._until(self._all_train, "all groups train")
            await self._until(lambda: self._step() >= _FIRST_STEPS, f"step {_FIRST_STEPS}")
            async with open_client(Connection(config=self.processes.config)) as client:
                self._client = client
                await client.listen(self._take)
                await self._wait_for_knobs()
                for change in SCRIPT:
                    await self._make(change)
                await self._make(ending(self._step()))
            for group in self.trainers:
                await self.processes.end_of(group)
                self.processes.check(group)
            self._poll()

    # --- changes ---

    async def _make(self, change: Change) -> None:
        if change.under_kill:
            # Frozen first: it cannot vote, so the change cannot land before the kill.
            self.trainers[VICTIM.group].send_signal(signal.SIGSTOP)
        self._say(f"$ {change.command}")
        request = msgspec.structs.replace(change.request, id=uuid.uuid4().hex)
        answer = await send(self._client, "knob.set", Answer, request, tries=2)
        if not answer.ok:
            raise StateError(f"{change.command}: {answer.text}")
        if change.under_kill:
            self._kill()
        outcome = await self._until(lambda: self._outcome(answer.ids), change.command)
        self._say(f"  {outcome.result}: {outcome.detail}")
        if outcome.result != "done":
            raise StateError(f"{change.command}: {outcome.result}: {outcome.detail}")
        if change.under_kill:
            await self._come_back()
        if change.watched:
            await self._judged(outcome.verdict)
        if "steps" not in change.values:
            goal = self._step() + change.rest_steps
            await self._until(lambda: self._step() >= goal, f"step {goal}")

    def _outcome(self, ids: tuple[str, ...]) -> Outcome | None:
        """Return the outcome of a change by its command IDs or verdict, None so far."""
        statuses = [one for one in self._reports if isinstance(one, CommandStatus)]
        verdicts = {*ids, *(one.cause for one in statuses if one.command in ids)}
        return next(filter(lambda o: o.verdict in verdicts, self._reports_of(Outcome)), None)

    async def _judged(self, verdict: str) -> None:
        """Wait for the guard's judgement, and for the rollback if there is one."""
        judged = await self._until(
            lambda: next((j for j in self._reports_of(Judged) if j.verdict == verdict), None),
            "the guard's judgement",
        )
        self._say(f"  guard: {_JUDGEMENTS[judged.hurt]}, {judged.text}")
        if judged.hurt:
            outcome = await self._until(
                lambda: next((o for o in self._reports_of(Outcome) if o.policy == GUARD), None),
                "the guard's rollback",
            )
            self._say(f"  rolled back, {outcome.result}: {outcome.detail}")

    def _reports_of(self, kind: type[_T]) -> Iterator[_T]:
        return (one for one in self._reports if isinstance(one, kind))

    def _take(self, kind: str, data: bytes) -> None:
        with suppress(*UNREADABLE):  # another kind of message
            self._reports.append(from_json(data, Report))

    # --- the killed group ---

    def _kill(self) -> None:
        self._is_away, self.killed_at = True, time.time()
        self.trainers[VICTIM.group].kill()
        self.trainers[VICTIM.group].wait()
        self._say(f"  kill -9 {VICTIM.group}, before it could vote")

    async def _come_back(self) -> None:
        self.processes.start_trainer(VICTIM, {})
        self._is_away = False
        await self._until(self._all_train, f"{VICTIM.group} is back")
        first = next(row for row in self.logs[VICTIM.group].steps if row["t"] > self.killed_at)
        text = ", ".join(f"{knob} = {first['knobs'][knob]}" for knob in SHOWN)
        self._say(f"  {VICTIM.group} is back at step {first['step']}, with {text}")

    # --- waiting ---

    async def _until(self, find: Callable[[], _T | None], what: str) -> _T:
        """Return the result of ``find`` once it is true."""
        deadline = time.monotonic() + START_S
        while not (found := find()):
            self._poll()
            for group in self.trainers:
                if group != VICTIM.group or not self._is_away:
                    self.processes.check(group)
            if time.monotonic() > deadline:
                folder = self.processes.folder
                raise StateError(f"after {START_S:g} s still waiting for: {what}; see {folder}")
            await asyncio.sleep(0.05)
        return found

    async def _wait_for_knobs(self) -> None:
        """Wait until the Weaver knows the knobs of all groups; telemetry may arrive earlier."""
        deadline = time.monotonic() + START_S
        groups = len(self.logs)
        while (
            sum("lr" in own for own in (await fetch_knobs(self._client)).values.values()) < groups
        ):
            if time.monotonic() > deadline:
                raise StateError(f"not all {groups} groups registered knobs within {START_S:g} s")
            await asyncio.sleep(0.05)

    def _poll(self) -> None:
        self.processes.read_logs()
        self._show()

    def _all_train(self) -> bool:
        return self.processes.all_train(_TOGETHER_STEPS, self.killed_at)

    def _step(self) -> int:
        return max(log.step for log in self.logs.values())


def play_knobs(training: Training, folder: Path, console: Console) -> report.Report:
    """Play the demo, print the report, and return it; StateError if a process or a check fails."""
    act = KnobsAct(training, folder / RUN)
    _perform(act, console)
    shown = report.Report(changes_in(act.processes.trajectory), act.logs, act.killed_at)
    write_summary(folder, report.summary_of(shown, training.seed))
    report.draw(folder / PLOT, shown)
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
