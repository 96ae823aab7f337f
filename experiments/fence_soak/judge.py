"""Say of a run that was struck whether each change landed on all ranks at one step, or nowhere."""

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
from torchloom_core.trajectory.layout import run_folder
from torchloom_core.trajectory.reader import read_epochs
from torchloom_core.wire.messages import FINAL_STATUSES
from torchloom_core.wire.requests import GUARD, PERSON, RECONCILE

MARKS = {knob.name for knobs in KNOBS.values() for knob in knobs if knob.mark}
ABORTS = re.compile(
    r"terminate called|Fatal Python error|Aborted \(|Enforce|preamble|AssertionError", re.IGNORECASE
)
AUTHORS: Mapping[str, frozenset[str]] = {"tuned": frozenset({"allreduce_tuner", GUARD, RECONCILE})}
"""Who changes knobs; of the other runs a person alone."""
EXPLAINED_S = 12.0
"""For how long a step may fail after something was struck, ended or joined."""

TAKEN_OVER = "taken over from a peer"

Values = dict[str, Any]


class Try(NamedTuple):
    """One try of a step: no two have the same quorum and the same step, and are committed."""

    step: int
    quorum: int


@dataclass
class Incarnation:
    """What one life of a trainer wrote down."""

    name: str
    alive: bool
    steps: dict[Try, Row] = field(default_factory=dict)
    failed: list[Row] = field(default_factory=list)
    set_at: dict[int, Values] = field(default_factory=lambda: defaultdict(dict))


@dataclass
class Asked:
    """What the record says of one granted change."""

    values: Values
    outcome: str = ""
    detail: str = ""
    policy: str = PERSON
    acks: list[Row] = field(default_factory=list)


@dataclass
class Findings:
    """What was counted, and every single thing that does not hold."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def judge(folder: Path, algorithm: Algorithm) -> Findings:
    """Read everything that a run left behind."""
    findings = Findings()
    timeline = record.rows(folder / record.TIMELINE)
    _look_at_ends(findings, folder, timeline)
    read = [_life(folder, row, timeline) for row in timeline if _starts_trainer(row)]
    _compare_lives(findings, read)
    asked = _asked(run_folder(folder / "state", "soak"))
    main = main_line(read)
    _look_at_authors(findings, asked, AUTHORS.get(algorithm, frozenset({PERSON})))
    if algorithm == "tuned":
        _look_at_failures(findings, read, timeline)
    else:
        _look_at_changes(findings, asked, main, read)
        _look_at_the_unfit(findings, asked, main, algorithm)
    findings.counts["seconds"] = round(timeline[-1]["t"] - timeline[0]["t"]) if timeline else 0
    return findings


# --- what is on file -----------------------------------------------------------------------


def _starts_trainer(row: Row) -> bool:
    return bool(row["event"] == "start" and row["what"] == "trainer")


def _life(folder: Path, start: Row, timeline: Iterable[Row]) -> Incarnation:
    name = start["name"]
    ended = any(row["event"] == "end" and row["name"] == name for row in timeline)
    return life_of(name, record.rows(folder / f"{name}.journal"), alive=not ended)


def life_of(name: str, journal: Iterable[Row], *, alive: bool) -> Incarnation:
    """Return a life as its journal tells it."""
    incarnation = Incarnation(name, alive)
    for row in journal:
        if row["event"] == "set":
            incarnation.set_at[row["step"]][row["knob"]] = row["value"]
        elif row["committed"]:
            incarnation.steps[Try(row["step"], row["quorum"])] = row
        else:
            incarnation.failed.append(row)
    return incarnation


def _asked(root: Path) -> dict[str, Asked]:
    asked: dict[str, Asked] = {}
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
                change = Asked(_values(body["action"]), policy=body["policy"])
                asked.setdefault(body["proposal"], change)
            elif line.kind == "outcome" and body["verdict"] in asked:
                told = asked[body["verdict"]]
                told.outcome, told.detail = body["result"], body["detail"]
            elif line.kind == "command_status" and _is_end(body) and body["cause"] in asked:
                asked[body["cause"]].acks.append(body)
    return asked


def _is_end(incarnation: Row) -> bool:
    return incarnation["status"] in FINAL_STATUSES


def _values(action: Mapping[str, Any]) -> Values:
    values = action["values"] if "values" in action else {action["knob"]: action["value"]}
    return dict(values)


# --- what must hold ------------------------------------------------------------------------


def _look_at_ends(findings: Findings, folder: Path, timeline: list[Row]) -> None:
    for row in timeline:
        if row["event"] == "strike":
            findings.counts[f"{row['kind']} {row['target']}"] += 1
        elif row["event"] == "omitted":
            findings.counts["strikes omitted: nobody else had the weights, or none was there"] += 1
        elif row["event"] == "granted":
            findings.counts["changes granted"] += 1
            findings.counts["refusals before"] += row["refused"]
        elif row["event"] == "refused":
            findings.counts["changes refused at once"] += 1
        elif row["event"] == "settled" and not row["calm"]:
            findings.faults.append("the run did not come to rest")
        elif row["event"] == "end":
            findings.counts[f"lives of {row['what']}s that ended"] += 1
            if not row["struck"]:
                findings.faults.append(
                    f"{row['name']} ended with {row['status']}, and nobody killed it: {row['last']}"
                )
    for path in sorted(folder.glob("*.err")):
        if found := ABORTS.search(path.read_text(errors="replace")):
            findings.faults.append(f"{path.name}: {found.group()}")


def _compare_lives(findings: Findings, read: Iterable[Incarnation]) -> None:
    """See that whoever committed the same try of a step did so with the same knobs and weights."""
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
        findings.faults.append(f"those that live ended at {sorted(ends)}")


def main_line(read: Iterable[Incarnation]) -> dict[int, Values]:
    """Return what the steps that count were made with: each the last time it was committed."""
    last: dict[int, tuple[int, Values]] = {}
    for incarnation in read:
        for at, row in incarnation.steps.items():
            if row["values"] is not None and (at.step not in last or at.quorum > last[at.step][0]):
                last[at.step] = at.quorum, row["values"]
    return {step: values for step, (_, values) in sorted(last.items())}


def landings(main: Mapping[int, Values], values: Values) -> list[range]:
    """Return the steps after which all of ``values`` began to be in use.

    Of each time all the steps that it may have been, if nobody was left to say it of some. A rate
    that is back with the optimizer whose it is has not landed once more.
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
    findings: Findings, asked: Mapping[str, Asked], authors: frozenset[str]
) -> None:
    for verdict, change in asked.items():
        name = f"{verdict} {change.values}"
        findings.counts[f"changes {change.outcome or 'without an outcome'}"] += 1
        if change.policy not in authors:
            findings.faults.append(f"{name}: nobody asked for it but {change.policy}")
        if not change.outcome:
            findings.faults.append(f"{name}: has no outcome")


def _look_at_failures(
    findings: Findings, read: Iterable[Incarnation], timeline: Iterable[Row]
) -> None:
    """See that no step failed but where somebody was struck, ended or joined shortly before."""
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
                    f"{incarnation.name}: step {row['step']} failed, and nobody was hit"
                )


def _look_at_changes(
    findings: Findings,
    asked: Mapping[str, Asked],
    main: Mapping[int, Values],
    read: list[Incarnation],
) -> None:
    for verdict, change in asked.items():
        name = f"{verdict} {change.values}"
        marked = {k: v for k, v in change.values.items() if k in MARKS} or change.values
        steps = landings(main, marked)
        makers = [
            incarnation.name
            for incarnation in read
            if any(marked.items() <= values.items() for values in incarnation.set_at.values())
        ]
        if len(steps) > 1:
            findings.faults.append(f"{name}: landed more than once, after step {_named(steps)}")
        if steps and not change.values.items() <= main[steps[0].stop].items():
            findings.faults.append(f"{name}: landed in part, after step {_named(steps)}")
        if change.outcome == "done" and not steps:
            findings.faults.append(f"{name}: done, and nobody has it: {change.detail}; {makers}")
        if change.outcome == "undone" and steps:
            findings.faults.append(
                f"{name}: undone, and landed after step {_named(steps)} on {makers}: "
                f"{change.detail}"
            )
        if change.outcome == "undone" and makers and not steps:
            findings.counts["changes lost with all who had made them"] += 1
        for ack in change.acks:
            said = ack["step"]
            if ack["status"] == "applied" and steps and not any(said in step for step in steps):
                kind = "taken over" if ack["detail"] == TAKEN_OVER else "applied"
                findings.faults.append(
                    f"{name}: {ack['worker']} says {kind} at step {said}, was {_named(steps)}"
                )


def _named(steps: Iterable[range]) -> str:
    return ", ".join("-".join(str(step) for step in sorted({*own[:1], *own[-1:]})) for own in steps)


def _look_at_the_unfit(
    findings: Findings,
    asked: Mapping[str, Asked],
    main: Mapping[int, Values],
    algorithm: Algorithm,
) -> None:
    """See that no round was made of what torchft cannot make one of."""
    for verdict, change in asked.items():
        if not fits(change.values, algorithm):
            findings.counts["changes that do not fit"] += 1
            if change.outcome != "undone":
                findings.faults.append(
                    f"{verdict} {change.values}: does not fit, and is {change.outcome}"
                )
    for step, used in main.items():
        if not fits(used, algorithm):
            findings.faults.append(f"step {step} was made with {used}, which does not fit")
