"""One act: three groups train while their links become slow, then fast again."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from torchloom_core.demos.bandwidth.links import links_for
from torchloom_core.demos.bandwidth.script import SCRIPT, Arm
from torchloom_core.demos.processes import START_S, Processes
from torchloom_core.demos.scenario import Training
from torchloom_core.demos.steplog import StepLog
from torchloom_core.floor.errors import StateError

_FIRST_STEPS = 10


class BandwidthAct:
    """One run in its own folder.

    Attributes
    ----------
    began : list of float
        Start of each phase of the script, and end of the last, s since the epoch.
    """

    def __init__(self, training: Training, arm: Arm, folder: Path) -> None:
        self.training, self.arm, self.folder = training, arm, folder
        folder.mkdir(parents=True)
        self.links = links_for(folder, len(training.places))
        self._processes = Processes(folder, training, self.links)
        self.logs = {p.group: StepLog(self._processes.log_of(p)) for p in training.places}
        self.began: list[float] = []

    @property
    def state_dir(self) -> Path:
        """The Weaver's state folder."""
        return self._processes.state_dir

    async def play(self, show: Callable[[], None]) -> None:
        """Play the act to its end; ``show`` is called several times a second.

        Raises
        ------
        StateError
            If a process fails or does not start.
        """
        with self.links.running():
            self.links.set_rate(SCRIPT[0].mbit)
            async with self._processes.weaver(acting=True, changed=self._config):
                try:
                    for place in self.training.places:
                        self._processes.start_trainer(place, {})
                    await self._until_all_train(show)
                    for phase in SCRIPT:
                        self.links.set_rate(phase.mbit)
                        self.began.append(time.time())
                        await self._for(phase.seconds, show)
                    self.began.append(time.time())
                finally:
                    self._processes.kill_trainers()
        self._poll(show)

    def _config(self, text: str) -> str:
        return text if self.arm.tuned else text.replace('mode = "act"', 'mode = "shadow"')

    async def _until_all_train(self, show: Callable[[], None]) -> None:
        deadline = time.monotonic() + START_S
        while not all(
            len(rows := log.steps[-_FIRST_STEPS:]) == _FIRST_STEPS
            and all(row["participants"] == len(self.logs) for row in rows)
            for log in self.logs.values()
        ):
            if time.monotonic() > deadline:
                raise StateError(f"not all groups train after {START_S:g} s; see {self.folder}")
            await self._for(0.1, show)

    async def _for(self, seconds: float, show: Callable[[], None]) -> None:
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            for group in self.logs:
                self._processes.check(group)
            self._poll(show)
            await asyncio.sleep(min(0.1, left_s))

    def _poll(self, show: Callable[[], None]) -> None:
        for log in self.logs.values():
            log.read()
        show()
