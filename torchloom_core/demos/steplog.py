"""Read the step logs of the demo's trainers, and compute measures of a run."""

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class StepLog:
    """The step log of a trainer, JSON lines, read as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.steps: list[dict[str, Any]] = []
        self.end: dict[str, Any] | None = None
        self._position = 0

    @property
    def step(self) -> int:
        """The last committed step, -1 before the first."""
        return max((row["step"] for row in self.steps[-3:]), default=-1)

    def read(self) -> None:
        """Read the lines written since the last call."""
        if not self.path.exists():
            return
        with self.path.open("rb") as lines:
            lines.seek(self._position)
            data = lines.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.splitlines():
            row = json.loads(line)
            if "committed" in row:
                self.steps.append(row)
            else:
                self.end = row


Logs = Mapping[str, StepLog]
"""Group name to step log."""


def differences(logs: Logs) -> list[int]:
    """Return the steps that groups committed with different knobs."""
    knobs: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for log in logs.values():
        for row in log.steps:
            if row["committed"]:
                knobs[row["step"]].append(row["knobs"])
    return sorted(step for step, seen in knobs.items() if any(one != seen[0] for one in seen))


def failed_steps(logs: Logs, since: float) -> list[dict[str, Any]]:
    """Return the steps of all groups that failed since that moment."""
    return [
        row
        for log in logs.values()
        for row in log.steps
        if not row["committed"] and row["t"] > since
    ]


@dataclass(frozen=True)
class Measures:
    """Measures of one act, over the groups that trained from start to end.

    ``failed_steps`` is the maximum number of steps that a surviving group could not commit,
    ``stall_s`` the longest step time minus the median, ``steps`` the number of the last committed
    step, and ``loss`` the mean of the last 20. The act is ``continuous`` if every step from the
    first to the last was committed.
    """

    failed_steps: int
    stall_s: float
    steps: int
    seconds: float
    groups_at_end: int
    loss: float
    continuous: bool
    weights_equal: bool


def measure(logs: Sequence[StepLog], finishers: Sequence[StepLog]) -> Measures:
    """Measure a run by its survivors' logs; ``finishers`` are all that reached the end."""
    reference = logs[0].steps
    settled = next((i for i, row in enumerate(reference) if row["participants"] >= 3), 0)
    rows = reference[settled:]
    committed = [row for row in rows if row["committed"]]
    numbers = [row["step"] for row in committed]
    durations = [row["duration_s"] for row in rows]
    failed = max(
        sum(not row["committed"] for row in log.steps if row["t"] >= rows[0]["t"]) for log in logs
    )
    weights = {log.end["weights"] for log in finishers if log.end}
    return Measures(
        failed_steps=failed,
        stall_s=max(durations) - statistics.median(durations),
        steps=numbers[-1],
        seconds=rows[-1]["t"] - rows[0]["t"],
        groups_at_end=int(rows[-1]["participants"]),
        loss=statistics.fmean(row["loss"] for row in committed[-20:]),
        continuous=numbers == list(range(numbers[0], numbers[0] + len(numbers))),
        weights_equal=len(weights) == 1 and all(log.end for log in finishers),
    )
