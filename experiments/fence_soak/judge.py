"""Check that each change of a disturbed run was applied on all ranks at one step, or on none."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from experiments.chaos import record
from experiments.chaos.record import Row
from experiments.fence_soak.script import KNOBS, Algorithm, fits
from torchloom_core.live.trajectory.layout import run_folder
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.wire.commands import FINAL_STATUSES
from torchloom_core.wire.requests import GUARD, PERSON, RECONCILE

MARKS = {knob.name for knobs in KNOBS.values() for knob in knobs if knob.mark}
ABORTS = re.compile(
    r"terminate called|Fatal Python error|Aborted \(|Enforce|preamble|AssertionError", re.IGNORECASE
)
AUTHORS: Mapping[str, frozenset[str]] = {"tuned": frozenset({"allreduce_tuner", GUARD, RECONCILE})}
"""The sources of changes; in the other runs only the client."""
EXPLAINED_S = 12.0
"""For how long a step may fail after something was struck, ended or joined."""

TAKEN_OVER = "taken over from a peer"

Values = dict[str, Any]


class Try(NamedTuple):
    """One attempt of a step; a step and a quorum identify a committed attempt."""

    step: int
    quorum: int


@dataclass
class Incarnation:
    """The journal of one incarnation of a trainer."""

    name: str
    alive: bool
    steps: dict[Try, Row] = field(default_factory=dict)
    failed: list[Row] = field(default_factory=list)
    set_at: dict[int, Values] = field(default_factory=lambda: defaultdict(dict))


@dataclass
class GrantedChange:
    """One granted change on record."""

    values: Values
    outcome: str = ""
    detail: str = ""
    policy: str = PERSON
    acks: list[Row] = field(default_factory=list)


@dataclass
class Findings:
    """Counts, and each violated requirement."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def judge(folder: Path, algorithm: Algorithm) -> Findings:
    """Read all files of a run."""
    findings = Findings()
    timeline = record.rows(folder / record.TIMELINE)
    _look_at_ends(findings, folder, timeline)
    read = [
        _incarnation(folder, row, timeline)
        for row in timeline
        if row["event"] == "start" and row["what"] == "trainer"
    ]
    _compare_incarnations(findings, read)
    granted = _granted_changes(run_folder(folder / "state", "soak"))
    main = main_line(read)
    _look_at_authors(findings, granted, AUTHORS.get(algorithm, frozenset({PERSON})))
    if algorithm == "tuned":
        _look_at_failures(findings, read, timeline)
    else:
        _look_at_changes(findings, granted, main, read)
        _look_at_the_invalid(findings, granted, main, algorithm)
    findings.counts["seconds"] = round(timeline[-1]["t"] - timeline[0]["t"]) if timeline else 0
    return findings


# --- what is on file -----------------------------------------------------------------------


def _incarnation(folder: Path, start: Row, timeline: Iterable[Row]) -> Incarnation:
    name = start["name"]
    ended = any(row["event"] == "end" and row["name"] == name for row in timeline)
    incarnation = Incarnation(name, not ended)
    for row in record.rows(folder / f"{name}.journal"):
        if row["event"] == "set":
            incarnation.set_at[row["step"]][row["knob"]] = row["value"]
        elif row["committed"]:
            incarnation.steps[Try(row["step"], row["quorum"])] = row
        else:
            incarnation.failed.append(row)
    return incarnation


def _granted_changes(root: Path) -> dict[str, GrantedChange]:
    granted: dict[str, GrantedChange] = {}
    for epoch_record in read_epochs(root):
        for line in epoch_record.lines():
            if line.kind not in ("verdict", "outcome", "command_status"):
                continue
            body = msgspec.json.decode(line.body)
            if (
                line.kind == "verdict"
                and body["granted"]
                and body["action"].keys() & {"values", "knob"}
            ):
                action = body["action"]
                knob = {action["knob"]: action["value"]} if "knob" in action else {}
                change = GrantedChange(action.get("values", knob), policy=body["policy"])
                granted.setdefault(body["proposal"], change)
            elif line.kind == "outcome" and body["verdict"] in granted:
                change = granted[body["verdict"]]
                change.outcome, change.detail = body["result"], body["detail"]
            elif (
                line.kind == "command_status"
                and body["status"] in FINAL_STATUSES
                and body["cause"] in granted
            ):
                granted[body["cause"]].acks.append(body)
    return granted


# --- requirements ---------------------------------------------------------------------------


def _look_at_ends(findings: Findings, folder: Path, timeline: list[Row]) -> None:
    for row in timeline:
        if row["event"] == "strike":
            findings.counts[f"{row['kind']} {row['target']}"] += 1
        elif row["event"] == "omitted":
            findings.counts["strikes omitted: no target, or no other group with the weights"] += 1
        elif row["event"] == "granted":
            findings.counts["changes granted"] += 1
            findings.counts["refusals before"] += row["refused"]
        elif row["event"] == "refused":
            findings.counts["changes refused at once"] += 1
        elif row["event"] == "settled" and not row["at_rest"]:
            findings.faults.append("the run did not come to rest")
        elif row["event"] == "end":
            findings.counts[f"incarnations of {row['what']}s that ended"] += 1
            if not row["struck"]:
                findings.faults.append(
                    f"{row['name']} ended with {row['status']} without a kill: {row['last']}"
                )
    for path in sorted(folder.glob("*.err")):
        if found := ABORTS.search(path.read_text(errors="replace")):
            findings.faults.append(f"{path.name}: {found.group()}")


def _compare_incarnations(findings: Findings, read: Iterable[Incarnation]) -> None:
    """Check that equal attempts of a step were committed with equal knobs and weights."""
    first: dict[tuple[Try, str], tuple[str, Any]] = {}
    for incarnation in read:
        for at, row in incarnation.steps.items():
            findings.counts["steps committed"] += 1
            for what in ("values", "weights"):
                if row[what] is None:
                    continue
                name, other = first.setdefault((at, what), (incarnation.name, row[what]))
                if name == incarnation.name:
                    continue
                findings.counts[f"{what} of a step compared"] += 1
                if row[what] != other:
                    findings.faults.append(
                        f"step {at.step} of quorum {at.quorum}: {what} of {incarnation.name} are "
                        f"{row[what]}, of {name} {other}"
                    )
    ends = {
        max(incarnation.steps) for incarnation in read if incarnation.alive and incarnation.steps
    }
    if ends and max(ends).step - min(ends).step > 1:
        findings.faults.append(f"the remaining groups ended at {sorted(ends)}")


def main_line(read: Iterable[Incarnation]) -> dict[int, Values]:
    """Return the values of the steps that count: each as it was committed last."""
    last: dict[int, tuple[int, Values]] = {}
    for incarnation in read:
        for at, row in incarnation.steps.items():
            if row["values"] is not None and (at.step not in last or at.quorum > last[at.step][0]):
                last[at.step] = at.quorum, row["values"]
    return {step: values for step, (_, values) in sorted(last.items())}


def landings(main: Mapping[int, Values], values: Values) -> list[range]:
    """Return the steps after which all of ``values`` were in use.

    Each is a range of possible steps, because the records of some steps may be missing. A rate
    that returns with its optimizer does not count as applied again.
    """
    found: list[range] = []
    before, last = 0, Values()
    for step, used in main.items():
        is_back = found and used.get("optimizer") != last.get("optimizer")
        if values.items() <= used.items() and not values.items() <= last.items() and not is_back:
            found.append(range(before, step))
        before, last = step, used
    return found


def _look_at_authors(
    findings: Findings, granted: Mapping[str, GrantedChange], authors: frozenset[str]
) -> None:
    for verdict, change in granted.items():
        name = f"{verdict} {change.values}"
        findings.counts[f"changes {change.outcome or 'without an outcome'}"] += 1
        if change.policy not in authors:
            findings.faults.append(f"{name}: was requested only by {change.policy}")
        if not change.outcome:
            findings.faults.append(f"{name}: has no outcome")


def _look_at_failures(
    findings: Findings, read: Iterable[Incarnation], timeline: Iterable[Row]
) -> None:
    """Check that steps failed only shortly after a process was struck, ended or joined."""
    read = list(read)
    reasons = [row["t"] for row in timeline if row["event"] in ("strike", "thaw", "start", "end")]
    reasons += [
        min(row["t"] for row in incarnation.steps.values())
        for incarnation in read
        if incarnation.steps
    ]
    for incarnation in read:
        for row in incarnation.failed:
            findings.counts["steps failed"] += 1
            if not any(0 <= row["t"] - at <= EXPLAINED_S for at in reasons):
                findings.faults.append(
                    f"{incarnation.name}: step {row['step']} failed without a strike"
                )


def _look_at_changes(
    findings: Findings,
    granted: Mapping[str, GrantedChange],
    main: Mapping[int, Values],
    read: list[Incarnation],
) -> None:
    for verdict, change in granted.items():
        name = f"{verdict} {change.values}"
        marked = {k: v for k, v in change.values.items() if k in MARKS} or change.values
        steps = landings(main, marked)
        makers = [
            incarnation.name
            for incarnation in read
            if any(marked.items() <= values.items() for values in incarnation.set_at.values())
        ]
        if len(steps) > 1:
            findings.faults.append(f"{name}: applied more than once, after step {_named(steps)}")
        if steps and not change.values.items() <= main[steps[0].stop].items():
            findings.faults.append(f"{name}: applied in part, after step {_named(steps)}")
        if change.outcome == "done" and not steps:
            findings.faults.append(f"{name}: done, but no rank has it: {change.detail}; {makers}")
        if change.outcome == "undone" and steps:
            findings.faults.append(
                f"{name}: undone, but applied after step {_named(steps)} on {makers}: "
                f"{change.detail}"
            )
        if change.outcome == "undone" and makers and not steps:
            findings.counts["changes lost with all ranks that had made them"] += 1
        for ack in change.acks:
            step = ack["step"]
            if ack["status"] == "applied" and steps and not any(step in landed for landed in steps):
                kind = "taken over" if ack["detail"] == TAKEN_OVER else "applied"
                findings.faults.append(
                    f"{name}: {ack['worker']} reports {kind} at step {step}, was {_named(steps)}"
                )


def _named(steps: Iterable[range]) -> str:
    return ", ".join("-".join(str(step) for step in sorted({*own[:1], *own[-1:]})) for own in steps)


def _look_at_the_invalid(
    findings: Findings,
    granted: Mapping[str, GrantedChange],
    main: Mapping[int, Values],
    algorithm: Algorithm,
) -> None:
    """Check that no round used invalid values."""
    for verdict, change in granted.items():
        if not fits(change.values, algorithm):
            findings.counts["invalid changes"] += 1
            if change.outcome != "undone":
                findings.faults.append(
                    f"{verdict} {change.values}: is invalid, but {change.outcome}"
                )
    for step, used in main.items():
        if not fits(used, algorithm):
            findings.faults.append(f"step {step} used invalid values {used}")
