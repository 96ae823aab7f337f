"""The digits trainer, which can be struck at a known moment, and records quorums and weights.

SIGUSR1 has it leave at the end of its step as a drain does; at SIGUSR2 it dies in its next
allreduce, while its peers are in it.
"""

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from types import FrameType
from typing import Any

from torchft import ProcessGroupGloo

from torchloom_threadlet import demo_trainer, torchft
from torchloom_threadlet.adapters.torchft.adapter import TorchftAdapter

JOURNAL = "LIGHTHOUSE_JOURNAL"
PROCESS_GROUP_TIMEOUT_S = 15.0
"""Apart from every other time-out here, so that it is seen which one ended a stall."""

_INTO_IT_S = 0.02
_EVERY_STEPS = 10

_struck: set[int] = set()


def _note(number: int, _: FrameType | None) -> None:
    _struck.add(number)


class MortalGloo(ProcessGroupGloo):  # type: ignore[misc]  # torchft has no types
    """A process group that ends its process on a signal."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__(timeout=timedelta(seconds=PROCESS_GROUP_TIMEOUT_S))

    def allreduce(self, *arguments: Any, **named: Any) -> Any:
        """Reduce, or die of it."""
        if signal.SIGUSR2 in _struck:
            time.sleep(_INTO_IT_S)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().allreduce(*arguments, **named)


class WatchedAdapter(TorchftAdapter):
    """Journals every new quorum id, and the weights of every tenth step."""

    _reported_id = -1
    _optimizer: Any = None

    def manage(self, manager: Any, optimizer: Any, **options: Any) -> None:
        """Keep a reference to the optimizer."""
        super().manage(manager, optimizer, **options)
        self._optimizer = optimizer

    def boundary(self, step: int | None) -> tuple[int | None, Mapping[str, Any]]:
        """Write what a step has reached."""
        manager = self._manager
        if manager._quorum_id != self._reported_id:
            self._reported_id = manager._quorum_id
            self._write(quorum_id=self._reported_id)
        if manager.current_step() % _EVERY_STEPS == 0:
            self._write(step=manager.current_step(), weights=self._digest())
        return super().boundary(step)

    def resume(self, going: bool) -> None:
        """Leave if requested, as after a drain."""
        if signal.SIGUSR1 in _struck:
            self.leave()
            going = self.worker.going = False
        super().resume(going)

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for group in self._optimizer.optim.param_groups:
            for parameter in group["params"]:
                digest.update(parameter.detach().numpy().tobytes())
        return digest.hexdigest()[:16]

    def _write(self, **fields: object) -> None:
        with open(os.environ[JOURNAL], "a") as journal:
            journal.write(json.dumps({"t": time.time(), **fields}) + "\n")


if __name__ == "__main__":
    torchft.TorchftAdapter = WatchedAdapter  # type: ignore[misc]
    demo_trainer.ProcessGroupGloo = MortalGloo
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, _note)
    sys.exit(demo_trainer.main())
