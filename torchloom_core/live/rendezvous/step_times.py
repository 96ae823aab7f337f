"""How long a step takes, from the workers' heartbeats."""

from statistics import median

from torchloom_core.wire.assignment import Assignment

_STEPS = 20
"""Over which a time is measured: heartbeats come at any moment of a step."""


class StepTimes:
    """The time of a step in the present generation, without the pauses between steps."""

    def __init__(self) -> None:
        self._generation = 0
        self._last: dict[str, int] = {}
        self._since: dict[str, tuple[int, float]] = {}
        self._step_s: dict[str, float] = {}

    def take(self, worker: str, committed: int, now_s: float, present: Assignment | None) -> None:
        """Take note of a worker's last step; of each worker its fastest ``_STEPS`` steps count."""
        if present is None or worker not in present.workers:
            return
        if present.generation != self._generation:
            self._generation = present.generation
            self._last, self._since, self._step_s = {}, {}, {}
        if worker not in self._since:
            # A worker that has just got a part learns of all steps that others have made.
            if committed > self._last.setdefault(worker, committed):
                self._since[worker] = (committed, now_s)
            return
        step, since_s = self._since[worker]
        if committed - step >= _STEPS:
            took_s = (now_s - since_s) / (committed - step)
            self._step_s[worker] = min(self._step_s.get(worker, took_s), took_s)
            self._since[worker] = (committed, now_s)

    def of(self, present: Assignment) -> float:
        """Return the seconds of a step of an assignment; 0 if it is not the present one."""
        if present.generation != self._generation or not self._step_s:
            return 0.0
        return median(self._step_s.values())
