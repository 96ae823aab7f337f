"""The digits trainer, which also writes down what is done to it and how long we held it.

Every line of the journal is on file before the command is acknowledged.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from torchloom_threadlet import demo_trainer
from torchloom_threadlet.torchft import adapter

HELD_S = 0.25
LARGEST_TALLY = 1_000_000


def note(event: str, **fields: object) -> None:
    """Add a line to the journal of this life."""
    with Path(os.environ["CHAOS_JOURNAL"]).open("a") as journal:
        journal.write(json.dumps({"t": time.time(), "event": event, **fields}) + "\n")


class WatchedLoom(adapter.TorchftLoom):
    """Journals each operation at the moment it is done in the training thread."""

    def wait_to_join(self) -> None:
        """Stand by, and write down how that ended: not yet, where it goes on to its Manager."""
        try:
            super().wait_to_join()
        except SystemExit:
            note("drain")
            raise
        if self.state != "standby":
            note("join")

    def manage(self, manager: Any, optimizer: Any = None) -> None:
        """Register a knob, a checkpoint and a farewell that are journaled."""
        super().manage(manager, optimizer)
        values = {"tally": 0}

        def set_tally(value: int) -> None:
            values["tally"] = value
            note("set_knob", value=value)

        self.knob("tally", lambda: values["tally"], set_tally, kind="int", high=LARGEST_TALLY)
        self.on_checkpoint(lambda: note("checkpoint"))
        self.on_drain(lambda: note("drain"))

    def step(self, step: int | None = None, **metrics: Any) -> bool:
        """Take a step, and write down if it did not return at once."""
        began = time.monotonic()
        going = super().step(step, **metrics)
        held_s = time.monotonic() - began
        if going and held_s > HELD_S:
            note("held", seconds=held_s)
        return going


adapter.TorchftLoom = WatchedLoom  # type: ignore[misc]

if __name__ == "__main__":
    demo_trainer.main()
