"""The digits trainer, which also records its operations and how long torchLoom blocked it.

Every line of the journal is written before the command is acknowledged.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from torchloom_threadlet import demo_trainer
from torchloom_threadlet.torchft import adapter

BLOCKED_S = 0.25
LARGEST = 1_000_000


def note(event: str, **fields: object) -> None:
    """Add a line to the journal of this incarnation."""
    with Path(os.environ["CHAOS_JOURNAL"]).open("a") as journal:
        journal.write(json.dumps({"t": time.time(), "event": event, **fields}) + "\n")


class WatchedLoom(adapter.TorchftLoom):
    """Records each operation as it is carried out in the training thread."""

    def wait_to_join(self) -> None:
        """Stand by, and record the end: a drain or a join, unless it only makes its Manager."""
        try:
            super().wait_to_join()
        except SystemExit:
            note("drain")
            raise
        if self.state != "standby":
            note("join")

    def manage(self, manager: Any, optimizer: Any = None) -> None:
        """Register a knob, a checkpoint and a drain function that are recorded."""
        super().manage(manager, optimizer)
        values = {"counter": 0}

        def set_counter(value: int) -> None:
            values["counter"] = value
            note("set_knob", value=value)

        self.knob("counter", lambda: values["counter"], set_counter, kind="int", high=LARGEST)
        self.on_checkpoint(lambda: note("checkpoint"))
        self.on_drain(lambda: note("drain"))

    def step(self, step: int | None = None, **metrics: Any) -> bool:
        """Take a step, and record if it blocked."""
        began = time.monotonic()
        going = super().step(step, **metrics)
        blocked_s = time.monotonic() - began
        if going and blocked_s > BLOCKED_S:
            note("blocked", seconds=blocked_s)
        return going


adapter.TorchftLoom = WatchedLoom  # type: ignore[misc]

if __name__ == "__main__":
    demo_trainer.main()
