"""The act: three groups train, a person changes their knobs, one is killed meanwhile."""

import asyncio
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from torchloom_core.cli.demo.knobs.script import SCRIPT, SHOWN, VICTIM, Change, ending
from torchloom_core.cli.demo.processes import START_S, Processes
from torchloom_core.cli.demo.scenario import Training
from torchloom_core.cli.demo.steplog import StepLog
from torchloom_core.cli.options import Connection
from torchloom_core.cli.weaver_client import ask, ask_knobs, open_client
from torchloom_core.errors import StateError
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.events import CommandStatus, Judged, Outcome
from torchloom_core.wire.operator import Answer
from torchloom_core.wire.requests import GUARD

if TYPE_CHECKING:
    from torchloom_core.transport import ControlClient

_GOODBYE_S = 15.0
_FIRST_STEPS = 30
_TOGETHER_STEPS = 15
_SAID = {True: "it hurts", False: "kept", None: "not judged"}

_T = TypeVar("_T")

Told = CommandStatus | Outcome | Judged


class KnobsAct:
    """One run in a folder, and what a person does to it.

    Attributes
    ----------
    killed_at : float or None
        When the victim was killed, s since the epoch.
    """

    def __init__(self, training: Training, folder: Path) -> None:
        self.training, self.folder = training, folder
        self._processes = Processes(folder, training)
        self.logs = {p.group: StepLog(self._processes.log_of(p)) for p in training.places}
        self.killed_at: float | None = None
        self._is_away = False
        self._told: list[Told] = []
        self._client: ControlClient
        self._show: Callable[[], None] = lambda: None
        self._say: Callable[[str], None] = lambda _: None

    @property
    def state_dir(self) -> Path:
        """The Weaver's state folder."""
        return self._processes.state_dir

    @property
    def trainers(self) -> dict[str, subprocess.Popen[bytes]]:
        """The trainers' processes, by their group."""
        return self._processes.trainers

    async def play(self, show: Callable[[], None], say: Callable[[str], None]) -> None:
        """Run from the first process to the last.

        ``show`` is called several times a second, ``say`` with what is done and told.

        Raises
        ------
        StateError
            If a process does not do its part, or a change is not over in time.
        """
        self._show, self._say = show, say
        self.folder.mkdir(parents=True)
        async with self._processes.weaver(acting=True):
            try:
                for place in self.training.places:
                    self._processes.start_trainer(place, {})
                await self._until(self._all_train, "all groups train")
                await self._until(lambda: self._step() >= _FIRST_STEPS, f"step {_FIRST_STEPS}")
                async with open_client(Connection(config=self._processes.config)) as client:
                    self._client = client
                    await client.listen(self._hear)
                    await self._until_the_knobs_are_known()
                    for change in SCRIPT:
                        await self._make(change)
                    await self._make(ending(self._step()))
                await self._until_the_trainers_have_left()
            finally:
                self._processes.kill_trainers()

    # --- what the person does ---

    async def _make(self, change: Change) -> None:
        if change.under_kill:
            # Frozen first: it cannot vote, so the change cannot land before the kill.
            self.trainers[VICTIM.group].send_signal(signal.SIGSTOP)
        self._say(f"$ {change.command}")
        request = msgspec.structs.replace(change.request, id=uuid.uuid4().hex)
        answer = await ask(self._client, "knob.set", Answer, request, tries=2)
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
        """Return what came of the change of which these are the commands, or the verdict."""
        lives = [told for told in self._told if isinstance(told, CommandStatus)]
        verdicts = {*ids, *(life.cause for life in lives if life.command in ids)}
        return next(filter(lambda o: o.verdict in verdicts, self._heard(Outcome)), None)

    async def _judged(self, verdict: str) -> None:
        """Wait for what the guard says, and for what it does about it."""
        judged = await self._until(
            lambda: next((j for j in self._heard(Judged) if j.verdict == verdict), None),
            "the guard's word",
        )
        self._say(f"  guard: {_SAID[judged.hurt]}, {judged.text}")
        if judged.hurt:
            outcome = await self._until(
                lambda: next((o for o in self._heard(Outcome) if o.policy == GUARD), None),
                "the guard's rollback",
            )
            self._say(f"  rolled back, {outcome.result}: {outcome.detail}")

    def _heard(self, kind: type[_T]) -> Iterator[_T]:
        return (told for told in self._told if isinstance(told, kind))

    def _hear(self, kind: str, data: bytes) -> None:
        with suppress(*UNREADABLE):  # something else that is told
            self._told.append(msgspec.json.decode(data, type=Told))

    # --- the group that is killed ---

    def _kill(self) -> None:
        self._is_away, self.killed_at = True, time.time()
        self.trainers[VICTIM.group].kill()
        self.trainers[VICTIM.group].wait()
        self._say(f"  kill -9 {VICTIM.group}, before it could vote")

    async def _come_back(self) -> None:
        self._processes.start_trainer(VICTIM, {})
        self._is_away = False
        await self._until(self._all_train, f"{VICTIM.group} is back")
        since = self.killed_at or 0.0
        first = next(row for row in self.logs[VICTIM.group].steps if row["t"] > since)
        text = ", ".join(f"{knob} = {first['knobs'][knob]}" for knob in SHOWN)
        self._say(f"  {VICTIM.group} is back at step {first['step']}, with {text}")

    # --- waiting ---

    async def _until(self, find: Callable[[], _T | None], what: str) -> _T:
        """Return what ``find`` does once it is true of it."""
        deadline = time.monotonic() + START_S
        while not (found := find()):
            self._look()
            for group in self.trainers:
                if group != VICTIM.group or not self._is_away:
                    self._processes.check(group)
            if time.monotonic() > deadline:
                raise StateError(f"not over in {START_S:g} s: {what}; see {self.folder}")
            await asyncio.sleep(0.05)
        return found

    async def _until_the_knobs_are_known(self) -> None:
        """Wait until the Weaver has heard of all groups' knobs: telemetry may come before."""
        deadline = time.monotonic() + START_S
        groups = len(self.logs)
        while sum("lr" in own for own in (await ask_knobs(self._client)).values.values()) < groups:
            if time.monotonic() > deadline:
                raise StateError(f"not over in {START_S:g} s: the knobs of {groups} groups")
            await asyncio.sleep(0.05)

    async def _until_the_trainers_have_left(self) -> None:
        for group, trainer in self.trainers.items():
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(trainer.wait, _GOODBYE_S)
            self._processes.check(group)
        self._look()

    def _look(self) -> None:
        for log in self.logs.values():
            log.read()
        self._show()

    def _all_train(self) -> bool:
        """Whether all groups have made some steps together."""
        return all(
            len(rows := log.steps[-_TOGETHER_STEPS:]) == _TOGETHER_STEPS
            and all(row["participants"] == len(self.logs) for row in rows)
            and rows[0]["t"] > (self.killed_at or 0.0)
            for log in self.logs.values()
        )

    def _step(self) -> int:
        return max(log.step for log in self.logs.values())
