"""What the record says of every command and every grant, against what the trainers did."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from experiments.chaos.moments import Span, overlap_s
from experiments.chaos.record import Row
from torchloom_core.clock import SECOND_NS
from torchloom_core.trajectory.reader import read_epochs
from torchloom_core.wire.messages import FINAL_STATUSES

GRACE_S = 5.0
SLACK_S = 2.0
OPERATIONS = ("set_knob", "checkpoint", "drain", "join")

Incarnation = tuple[str, int]


@dataclass
class Told:
    """All lives' records of commands and grants."""

    commands: dict[str, Row] = field(default_factory=dict)
    issued_s: dict[str, float] = field(default_factory=dict)
    ends: dict[str, list[tuple[float, str, str]]] = field(default_factory=dict)
    granted: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    results: Counter[str] = field(default_factory=Counter)
    pids: dict[int, Incarnation] = field(default_factory=dict)
    proposals: Counter[str] = field(default_factory=Counter)
    epochs: int = 0


def read(root: Path) -> Told:
    """Read every life under ``root``."""
    told = Told()
    for record in read_epochs(root):
        told.epochs += 1
        sent_as = ""
        for line in record.lines():
            if line.kind == "tick":
                continue
            body = msgspec.json.decode(line.body)
            if line.n == 0:
                sent_as = body.get("sent_as", "") if line.kind == "request" else ""
            elif line.kind == "proposed" and sent_as:
                told.proposals[sent_as] += 1
            _take(told, line.kind, line.ts_ns / SECOND_NS, body)
    return told


def _take(told: Told, kind: str, t: float, body: dict[str, Any]) -> None:
    match kind:
        case "issue":
            told.commands.setdefault(body["command"]["id"], body["command"])
        case "command_status" if body["status"] == "issued":
            told.issued_s[body["command"]] = t
            told.ends.setdefault(body["command"], [])
        case "command_status" if body["status"] in FINAL_STATUSES:
            end = (t, body["status"], body.get("detail", ""))
            told.ends.setdefault(body["command"], []).append(end)
        case "verdict" if body["granted"]:
            told.granted[body["proposal"]] += 1
        case "outcome":
            told.outcomes[body["verdict"]] += 1
            told.results[body["result"]] += 1
        case "hello":
            told.pids[body["pid"]] = (body["worker"], body["incarnation"])


def faults(told: Told, requests: Sequence[Row], away: Sequence[Span]) -> dict[str, list[str]]:
    """Return what of the record is not as promised, by kind; ``away``: nobody could end it."""
    found: dict[str, list[str]] = defaultdict(list)
    for command, ends in told.ends.items():
        name = _name(told, command)
        if not ends:
            found["lost"].append(f"{name} has no end on record")
        if len(ends) > 1:
            found["doubled"].append(f"{name} has ends {[status for _, status, _ in ends]}")
        if ends and command in told.commands:
            over_s = told.commands[command]["deadline_ns"] / SECOND_NS + GRACE_S
            late_s = ends[0][0] - over_s - overlap_s(away, over_s, ends[0][0])
            if late_s > SLACK_S:
                found["stuck"].append(f"{name} was open {late_s:.1f} s after deadline and grace")
    for verdict in told.granted.keys() | told.outcomes.keys():
        granted, outcomes = told.granted[verdict], told.outcomes[verdict]
        if (granted, outcomes) != (1, 1):
            found["outcomes"].append(f"{verdict}: {granted} grants, {outcomes} outcomes")
    for sent_as, count in told.proposals.items():
        if count > 1:
            found["doubled"].append(f"request {sent_as}, sent again, became {count} proposals")
    for row in requests:
        for command in row.get("answer", {}).get("ids", ()):
            if command not in told.ends:
                found["lost"].append(f"{command} was promised to a person and is not on record")
    return found


def operation_faults(
    told: Told, journals: Iterable[tuple[Row, Sequence[Row], bool]]
) -> dict[str, list[str]]:
    """Compare each trainer's journal with the record.

    ``journals`` are, for each life of a trainer, the start on the timeline, the journal, and
    whether the life was cut short.
    """
    of_life: dict[Incarnation, list[Row]] = defaultdict(list)
    for command in told.commands.values():
        of_life[command["worker"], command["incarnation"]].append(command)
    found: dict[str, list[str]] = defaultdict(list)
    for start, journal, cut_short in journals:
        incarnation = told.pids.get(start["pid"])
        operations = Counter((row["event"], row.get("value")) for row in journal)
        commands: dict[tuple[str, Any], list[str]] = defaultdict(list)
        for command in of_life[incarnation] if incarnation else ():
            do = command["do"]
            commands[do["verb"], do.get("value")].append(command["id"])
        for key in (operations.keys() | commands.keys()) if incarnation else operations.keys():
            if key[0] not in OPERATIONS or (key[0] == "join" and not start["standby"]):
                continue
            _compare(found, told, start["name"], key, operations[key], commands[key], cut_short)
    return found


def _compare(
    found: dict[str, list[str]],
    told: Told,
    name: str,
    key: tuple[str, Any],
    operations: int,
    commands: list[str],
    cut_short: bool,
) -> None:
    what = f"{name}: {key[0]}{'' if key[1] is None else f' {key[1]}'}"
    ends = [status for command in commands for _, status, _ in told.ends.get(command, ())]
    applied = ends.count("applied")
    if operations > len(commands):
        found["doubled"].append(f"{what} was done {operations} times for {len(commands)} commands")
    elif applied > operations:
        found["untrue"].append(f"{what} was done {operations} times and applied {applied} times")
    elif operations > applied and not cut_short:
        found["untrue"].append(f"{what} was done {operations} times and ended as {ends}")


def _name(told: Told, command: str) -> str:
    body = told.commands.get(command)
    return f"{command} ({body['do']['verb']} to {body['worker']})" if body else command
