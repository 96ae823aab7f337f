"""The digits trainer, which also logs its commands and can be stopped before it joins."""

import json
import os
import time
from pathlib import Path

from torchloom_threadlet import demo_trainer, torchft
from torchloom_threadlet.adapters.torchft.adapter import TorchftAdapter

HOLD_POLL_S = 0.02


class WatchedAdapter(TorchftAdapter):
    """Journals each time that a command takes effect in the training thread."""

    def rejoin(self):
        super().rejoin()
        hold = Path(os.environ["TEST_HOLD"])
        while hold.exists():
            time.sleep(HOLD_POLL_S)

    def manage(self, manager, *parts):
        super().manage(manager, *parts)
        values = {"counter": 0}

        def write(**fields):
            with Path(os.environ["TEST_JOURNAL"]).open("a") as journal:
                journal.write(json.dumps(fields) + "\n")

        def set_counter(value):
            values["counter"] = value
            write(event="counter", value=value)

        loom = self.loom
        loom.knob("counter", lambda: values["counter"], set_counter, kind="int", low=0, high=1000)
        loom.on_checkpoint(lambda: write(event="checkpoint", step=manager.current_step()))


def attach(*arguments, held, **named):
    """Attach; with ``TEST_UNHELD`` set, make no promise of the Manager's name."""
    return torchft.attach(*arguments, held=held and "TEST_UNHELD" not in os.environ, **named)


torchft.TorchftAdapter = WatchedAdapter
demo_trainer.attach = attach

if __name__ == "__main__":
    demo_trainer.main()
