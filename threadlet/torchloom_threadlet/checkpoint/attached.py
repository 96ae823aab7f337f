"""What ``loom.checkpoints`` does: the knob, the commands and SIGTERM work on the checkpointer."""

import os
import signal
import threading
from collections.abc import Sequence
from typing import Any

from torchloom_threadlet.checkpoint.checkpointer import Checkpointer
from torchloom_threadlet.checkpoint.saving_ranks import SavingRanks

_LONGEST_S = 30 * 86_400.0


def attach_checkpoints(
    loom: Any, parts: Sequence[Any], path: str | os.PathLike[str], every_s: float, keep: int
) -> Checkpointer:
    """Return the checkpointer of a loom, with the newest checkpoint loaded."""
    worker = loom.adapter.worker
    checkpointer = Checkpointer(
        parts,
        {"loom": Knobs(loom)},
        os.fspath(path),
        every_s=every_s,
        keep=keep,
        run=worker.run,
        ranks=SavingRanks(),
        note=worker.note,
        leave=worker.leave,
        saves=loom.adapter.saves,
    )
    if checkpointer.step >= 0:
        worker.step = checkpointer.step

    def set_interval(seconds: float) -> None:
        checkpointer.every_s = seconds

    loom.knob(
        "checkpoint_interval_s",
        lambda: checkpointer.every_s,
        set_interval,
        low=1.0,
        high=_LONGEST_S,
        doc="training between two checkpoints, seconds",
    )
    loom.on_checkpoint(checkpointer.save)
    _leave_at_sigterm(checkpointer)
    return checkpointer


class Knobs:
    """The loom's own part of the state: its step and the knobs in force."""

    def __init__(self, loom: Any) -> None:
        self._loom = loom

    def state_dict(self) -> dict[str, Any]:
        """Return the step and the knobs that all ranks share."""
        state: dict[str, Any] = self._loom.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the knobs that are registered by now."""
        self._loom.load_state_dict(state)


def _leave_at_sigterm(checkpointer: Checkpointer) -> None:
    """Save and leave at SIGTERM, if the script does nothing of its own at it."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda *_: checkpointer.leave())
