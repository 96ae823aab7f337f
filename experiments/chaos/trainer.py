"""The digits trainer, which also records its operations and how long torchLoom blocked it.

Every line of the journal is written before the command is acknowledged.
"""

import time
from typing import Any

from experiments.chaos.record import note
from torchloom_threadlet import demo_trainer, torchft
from torchloom_threadlet.adapters.torchft.adapter import TorchftAdapter

BLOCKED_S = 0.25
LARGEST = 1_000_000


class WatchedAdapter(TorchftAdapter):
    """Records each operation as it is carried out in the training thread."""

    _began = float("inf")
    _joined = False

    def rejoin(self) -> None:
        """Stand by, and record the end: a drain or a join, unless it only makes its Manager."""
        try:
            super().rejoin()
        except SystemExit:
            note("drain")
            raise
        if self.loom.state != "standby":
            self._note_join()

    def _note_join(self) -> None:
        if not self._joined:
            self._joined = True
            note("join")

    def manage(self, manager: Any, *parts: Any, **options: Any) -> None:
        """Register a knob, a checkpoint and a drain function that are recorded."""
        super().manage(manager, *parts, **options)
        self._note_join()  # also if the command came while the Manager was made
        values = {"counter": 0, "shared": 0}

        def set_counter(value: int) -> None:
            values["counter"] = value
            note("set_knob", value=value)

        def set_shared(value: int) -> None:
            values["shared"] = value
            note("set_shared", value=value, step=manager.current_step())

        loom = self.loom
        loom.knob("counter", lambda: values["counter"], set_counter, kind="int", high=LARGEST)
        loom.knob(
            "shared",
            lambda: values["shared"],
            set_shared,
            kind="int",
            high=LARGEST,
            fence="run",
        )
        loom.on_checkpoint(lambda: note("checkpoint"))
        loom.on_drain(lambda: note("drain"))

    def vote(self, step: int | None) -> None:
        """Start the clock of a step boundary."""
        self._began = time.monotonic()

    def resume(self, going: bool) -> None:
        """End a step boundary, and record if it blocked."""
        blocked_s = time.monotonic() - self._began
        super().resume(going)
        if going and blocked_s > BLOCKED_S:
            note("blocked", seconds=blocked_s)


torchft.TorchftAdapter = WatchedAdapter  # type: ignore[misc]

if __name__ == "__main__":
    demo_trainer.main()
