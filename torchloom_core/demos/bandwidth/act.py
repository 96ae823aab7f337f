"""One act: three groups train while their links become slow, then fast again."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from torchloom_core.demos.bandwidth.links import links_for
from torchloom_core.demos.bandwidth.script import SCRIPT, Arm
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
        """Play the act to its end; ``show`` is called several times a second.

        Raises StateError if a process fails or does not start.
        """
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
