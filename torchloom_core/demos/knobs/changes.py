"""The knob changes that the Weaver granted, and the step at which each group applied them."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchloom_core.demos.steplog import Logs, failed_steps
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.wire.actions import new_values
from torchloom_core.wire.capabilities import json_decoder
from torchloom_core.wire.decisions import Judged, Outcome, Verdict
from torchloom_core.wire.limits import KnobValues
from torchloom_core.wire.requests import GUARD

Decision = Verdict | Outcome | Judged


@dataclass(frozen=True)
class RecordedChange:
    """A change of knobs that was granted, by ``operator`` or ``guard``, requested ``at``.

    ``result`` is that of its outcome, empty if it did not end. ``hurt`` is the guard's judgement
    and ``why`` the reason; None if the change had no guard.
    """

    by: str
    values: KnobValues
    at: float
    result: str = ""
    hurt: bool | None = None
    why: str = ""

    @property
    def text(self) -> str:
        """The knobs and their values."""
        return ", ".join(f"{knob} {value}" for knob, value in self.values.items())

    @property
    def outcome(self) -> str:
        """The outcome as text."""
        if self.hurt is None or self.result != "done":
            return self.result
        return "rolled back" if self.hurt else "done, not worse"


def changes_in(trajectory: Path) -> list[RecordedChange]:
    """Return the changes that were granted, oldest first, from a Weaver's trajectory."""
    decoder = json_decoder(Decision)
    tags = {kind.__struct_config__.tag for kind in (Verdict, Outcome, Judged)}
    return changes_of(
        [
            (line.ts_ns / 1e9, decoder.decode(line.body))
            for epoch_record in read_epochs(trajectory)
            for line in epoch_record.lines()
            if line.io == "out" and line.kind in tags
        ]
    )


def changes_of(record: Sequence[tuple[float, Decision]]) -> list[RecordedChange]:
    """Return the changes of knobs that were granted, oldest first."""
    results = {one.verdict: one.result for _, one in record if isinstance(one, Outcome)}
    judged = {one.verdict: one for _, one in record if isinstance(one, Judged)}
    changes = []
    for at, one in record:
        if isinstance(one, Verdict) and one.granted and (values := new_values(one.action)):
            by = GUARD if one.policy == GUARD else "operator"
            result = results.get(one.proposal, "")
            change = RecordedChange(by=by, values=values, at=at, result=result)
            if judgement := judged.get(one.proposal):
                change = replace(change, hurt=judgement.hurt, why=judgement.text)
            changes.append(change)
    return changes


@dataclass(frozen=True)
class Landing:
    """A change in the groups' step logs.

    ``last_without`` is the last step before it of each group that applied it while training, and
    ``inherited`` the first step of each that restarted with it. From the request until the last
    group had applied it took ``seconds``; ``failed_steps`` are those of all groups in that time.
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
        first = next((i for i in later if change.values.items() <= rows[i]["knobs"].items()), None)
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
