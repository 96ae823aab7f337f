"""Find the step at which each group applied a change, from the groups' step logs."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torchloom_core.demos.knobs.record import RecordedChange
from torchloom_core.demos.steplog import Logs, failed_steps
from torchloom_core.wire.limits import KnobValues

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Landing:
    """A change in the groups' step logs.

    Attributes
    ----------
    last_without : dict of str to int
        Group to its last step before the change, of groups that applied it while training.
    inherited : dict of str to int
        Group to its first step, of groups that restarted with the change.
    seconds : float
        Time from the request until the last group had applied it.
    failed_steps : int
        Steps of all groups that failed in that time.
    """

    last_without: dict[str, int]
    inherited: dict[str, int]
    seconds: float
    failed_steps: int

    def is_at_one_step(self, groups: Iterable[str]) -> bool:
        """Whether all these groups have the change, and applied it at the same step."""
        have = {*self.last_without, *self.inherited}
        return have == set(groups) and len(set(self.last_without.values())) == 1


def land(change: RecordedChange, logs: Logs) -> Landing:
    """Find a change in the groups' step logs."""
    last_without: dict[str, int] = {}
    inherited: dict[str, int] = {}
    landed_at = change.at
    for group, log in logs.items():
        rows = [row for row in log.steps if row["committed"]]
        later = (i for i, row in enumerate(rows) if row["t"] > change.at)
        first = next((i for i in later if _has(rows[i], change.values)), None)
        if first is None:
            continue
        step = rows[first]["step"]
        if first and rows[first - 1]["step"] == step - 1:
            last_without[group] = step - 1
            landed_at = max(landed_at, rows[first - 1]["t"])
        else:
            inherited[group] = step
    meanwhile = [row for row in failed_steps(logs, change.at) if row["t"] <= landed_at]
    return Landing(last_without, inherited, landed_at - change.at, len(meanwhile))


def failures(logs: Logs, since: float, killed_at: float) -> tuple[int, list[str]]:
    """Return the number of steps that failed by the kill, and the other failed steps.

    A step failed by the kill if it failed before the group's first committed step that began after
    the kill. A step that began before may still commit, if the victim had voted; then the next one
    fails.
    """
    by_kill = 0
    others: list[str] = []
    for group, log in logs.items():
        recovered_at = next(
            (
                row["t"]
                for row in log.steps
                if row["committed"] and row["t"] - row["duration_s"] > killed_at
            ),
            math.inf,
        )
        for row in log.steps:
            if row["committed"] or row["t"] <= since:
                continue
            if killed_at < row["t"] < recovered_at:
                by_kill += 1
            else:
                reason = row.get("error", "").strip().splitlines() or ["no error was reported"]
                others.append(f"{group} after step {row['step']}: {reason[-1]}")
    return by_kill, others


def bytes_by_mode(logs: Logs) -> dict[str, float]:
    """Return the median bytes that a group sends per step, by mode, with all groups present."""
    sent: dict[str, list[float]] = defaultdict(list)
    for log in logs.values():
        for row in log.steps:
            if row["committed"] and row["participants"] == len(logs):
                sent[row["knobs"]["compression"]].append(row["sent_bytes"])
    return {mode: statistics.median(values) for mode, values in sent.items()}


def weights_are_equal(logs: Logs) -> bool:
    """Whether all groups ended at the same step with bitwise equal weights."""
    ends = [log.end for log in logs.values()]
    return all(ends) and len({(end["step"], end["weights"]) for end in ends if end}) == 1


def _has(row: Row, values: KnobValues) -> bool:
    return all(row["knobs"].get(knob) == value for knob, value in values.items())
