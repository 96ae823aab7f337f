"""Evidence on workers that finish no step: stopped, idle, working or in a named phase."""

import numpy as np
from numpy.typing import NDArray

from torchloom_core.plugin import FleetView, Floats, Need, NeedNotes

Rows = NDArray[np.bool_]

_STOPPED, _CPU_STILL, _STACK_STILL, _PHASE_LEFT = (
    "trainer_stopped",
    "trainer_cpu_still_s",
    "trainer_stack_still_s",
    "trainer_phase_left_s",
)
_STILL, _OVERRUN, DUMP = "still", "phase_overrun", "dump"

NEEDS = (
    Need(_STOPPED),
    Need(_CPU_STILL, optional=True),
    Need(_STACK_STILL, optional=True),
    Need(_PHASE_LEFT, optional=True),
    NeedNotes((_STILL, _OVERRUN, DUMP)),
)


class Standstill:
    """The evidence at one tick, by rows.

    Attributes
    ----------
    stopped : (workers,) bool
        Its process is stopped, by SIGSTOP or a debugger.
    in_phase : (workers,) bool
        It is in a named phase, within its bound.
    unseen : (workers,) bool
        Its CPU time or stack is unknown, as with an older Threadlet.
    idle_s : (workers,) float64
        Time without CPU use and with an unchanged stack, seconds; 0 if it works or is unseen.
    """

    def __init__(self, view: FleetView) -> None:
        self._view = view
        self._cpu_still_s = view.latest(_CPU_STILL)
        self._stack_still_s = view.latest(_STACK_STILL)
        self.stopped: Rows = view.latest(_STOPPED) >= 1
        self.in_phase: Rows = view.latest(_PHASE_LEFT) > 0
        self.unseen: Rows = np.isnan(self._cpu_still_s) | np.isnan(self._stack_still_s)
        idle_s = np.where(self._stack_still_s > 0, self._cpu_still_s, 0.0)
        self.idle_s: Floats = np.where(self.unseen, 0.0, np.minimum(idle_s, view.progress_age_s))

    def in_words(self, row: int) -> str:
        """Return the evidence on the worker in ``row``."""
        if self.stopped[row]:
            return "its process is stopped"
        if self.unseen[row]:
            text = "its CPU time and stack are unknown"
        elif self.idle_s[row] > 0:
            at = self._field(_STILL, row, "at")
            text = (
                f"no CPU time for {self._cpu_still_s[row]:.0f} s, stack unchanged for "
                f"{self._stack_still_s[row]:.0f} s{f' in {at}' if at else ''}"
            )
        else:
            text = "it is working, but exceeds the time limit of a step"
        phase = self._field(_OVERRUN, row, "phase")
        if phase and self._view.latest(_PHASE_LEFT)[row] <= 0:
            bound_s = self._field(_OVERRUN, row, "at_most_s")
            text += f", its phase {phase} exceeds its bound of {bound_s} s"
        return text

    def _field(self, kind: str, row: int, name: str) -> str:
        note = self._view.note(kind, row)
        value = note.fields.get(name, "") if note is not None else ""
        return f"{value:g}" if isinstance(value, int | float) else str(value)
