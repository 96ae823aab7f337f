"""Where each change landed, by what the groups themselves wrote down at every step."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torchloom_core.cli.demo.knobs.record import Asked
from torchloom_core.cli.demo.steplog import Logs, failed_steps
from torchloom_core.wire.messages import KnobValues

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Landing:
    """What became of a change in the groups' logs.

    Attributes
    ----------
    last_without : dict of str to int
        By group, the last step before the change; of those that have made it themselves.
    inherited : dict of str to int
        By group, the first step; of those that were away and came back with it.
    seconds : float
        From asking until the last group had made it.
    failed_steps : int
        That could not be committed meanwhile, of all groups.
    """

    last_without: dict[str, int]
    inherited: dict[str, int]
    seconds: float
    failed_steps: int

    def is_at_one_step(self, groups: Iterable[str]) -> bool:
        """Whether all these groups have it, and all that made it did so at the same step."""
        have = {*self.last_without, *self.inherited}
        return have == set(groups) and len(set(self.last_without.values())) == 1


def land(asked: Asked, logs: Logs) -> Landing:
    """Find a change in the groups' logs."""
    last_without: dict[str, int] = {}
    inherited: dict[str, int] = {}
    landed_at = asked.at
    for group, log in logs.items():
        rows = [row for row in log.steps if row["committed"]]
        having = (i for i, row in enumerate(rows) if row["t"] > asked.at)
        first = next((i for i in having if _has(rows[i], asked.values)), None)
        if first is None:
            continue
        step = rows[first]["step"]
        if first and rows[first - 1]["step"] == step - 1:
            last_without[group] = step - 1
            landed_at = max(landed_at, rows[first - 1]["t"])
        else:
            inherited[group] = step
    meanwhile = [row for row in failed_steps(logs, asked.at) if row["t"] <= landed_at]
    return Landing(last_without, inherited, landed_at - asked.at, len(meanwhile))


def failures(logs: Logs, since: float, killed_at: float) -> tuple[int, list[str]]:
    """Return how many steps the kill cost ``since`` then, and which failed for another reason.

    The kill cost a group every step that failed from then to the first one that the group began
    after the kill and committed. One that was under way may still commit, where the victim had
    voted already; the next one then fails of the kill.
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
    """Return what a group sends in a step, the median of each mode, where all take part."""
    sent: dict[str, list[float]] = defaultdict(list)
    for log in logs.values():
        for row in log.steps:
            if row["committed"] and row["participants"] == len(logs):
                sent[row["knobs"]["compression"]].append(row["sent_bytes"])
    return {mode: statistics.median(values) for mode, values in sent.items()}


def weights_are_equal(logs: Logs) -> bool:
    """Whether all groups came to the same end, with bitwise equal weights."""
    ends = [log.end for log in logs.values()]
    return all(ends) and len({(end["step"], end["weights"]) for end in ends if end}) == 1


def _has(row: Row, values: KnobValues) -> bool:
    return all(row["knobs"].get(knob) == value for knob, value in values.items())
