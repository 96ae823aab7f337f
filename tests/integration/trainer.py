"""The digits trainer, which also logs its commands and can be stopped before it joins."""

import json
import os
import time
from pathlib import Path

from torchloom_threadlet import demo_trainer
from torchloom_threadlet.torchft import adapter

HOLD_POLL_S = 0.02


class WatchedLoom(adapter.TorchftLoom):
    """Journals each time that a command takes effect in the training thread.

    With ``TEST_UNHELD`` set it makes no promise of its Manager's name.
    """

    def __init__(self, *arguments, held, **offers):
        super().__init__(*arguments, held=held and "TEST_UNHELD" not in os.environ, **offers)

    def wait_to_join(self):
        super().wait_to_join()
        hold = Path(os.environ["TEST_HOLD"])
        while hold.exists():
            time.sleep(HOLD_POLL_S)

    def manage(self, manager, optimizer=None):
        super().manage(manager, optimizer)
        values = {"counter": 0}

        def write(**fields):
            with Path(os.environ["TEST_JOURNAL"]).open("a") as journal:
                journal.write(json.dumps(fields) + "\n")

        def set_counter(value):
            values["counter"] = value
            write(event="counter", value=value)

        self.knob("counter", lambda: values["counter"], set_counter, kind="int", low=0, high=1000)
        self.on_checkpoint(lambda: write(event="checkpoint", step=manager.current_step()))


adapter.TorchftLoom = WatchedLoom

if __name__ == "__main__":
    demo_trainer.main()
