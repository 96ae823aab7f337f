"""Compare the recorded commands and grants with what the trainers did."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from experiments.chaos.moments import Span, overlap_s
from experiments.chaos.record import Row
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.wire.commands import FINAL_STATUSES

GRACE_S = 5.0
SLACK_S = 2.0
OPERATIONS = ("set_knob", "checkpoint", "drain", "join")

Incarnation = tuple[str, int]


@dataclass
class CommandRecord:
    """The commands and grants on record, of all incarnations of the Weaver."""

    commands: dict[str, Row] = field(default_factory=dict)
    issued_s: dict[str, float] = field(default_factory=dict)
    ends: dict[str, list[tuple[float, str, str]]] = field(default_factory=dict)
    granted: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    results: Counter[str] = field(default_factory=Counter)
    pids: dict[int, Incarnation] = field(default_factory=dict)
    proposals: Counter[str] = field(default_factory=Counter)
    backlogs: list[Span] = field(default_factory=list)
    """While it lags behind reports, and for the grace after it, the Weaver ends no command."""
    epochs: int = 0


def read(root: Path) -> CommandRecord:
    """Read every epoch under ``root``."""
    recorded = CommandRecord()
    for record in read_epochs(root):
        recorded.epochs += 1
        sent_as = ""
        behind_since: float | None = None
        for line in record.lines():
            if line.kind == "tick":
                continue
            body = msgspec.json.decode(line.body)
            t = line.ts_ns / SECOND_NS
            if line.kind == "backlog":
                if behind_since is not None:
                    recorded.backlogs.append(Span(behind_since, t + GRACE_S))
                behind_since = None if body["taken_until_ns"] is None else t
            if line.n == 0:
                sent_as = body.get("sent_as", "") if line.kind == "request" else ""
            elif line.kind == "proposed" and sent_as:
                recorded.proposals[sent_as] += 1
            _take(recorded, line.kind, t, body)
    return recorded


def _take(recorded: CommandRecord, kind: str, t: float, body: dict[str, Any]) -> None:
    match kind:
        case "issue":
            recorded.commands.setdefault(body["command"]["id"], body["command"])
        case "command_status" if body["status"] == "issued":
            recorded.issued_s[body["command"]] = t
            recorded.ends.setdefault(body["command"], [])
        case "command_status" if body["status"] in FINAL_STATUSES:
            end = (t, body["status"], body.get("detail", ""))
            recorded.ends.setdefault(body["command"], []).append(end)
        case "verdict" if body["granted"]:
            recorded.granted[body["proposal"]] += 1
        case "outcome":
            recorded.outcomes[body["verdict"]] += 1
            recorded.results[body["result"]] += 1
        case "hello":
            recorded.pids[body["pid"]] = (body["worker"], body["incarnation"])


def faults(
    recorded: CommandRecord, requests: Sequence[Row], away: Sequence[Span]
) -> dict[str, list[str]]:
    """Return the faults on record, by kind; while ``away`` no Weaver could end a command."""
    found: dict[str, list[str]] = defaultdict(list)
    for command, ends in recorded.ends.items():
        name = _name(recorded, command)
        if not ends:
            found["lost"].append(f"{name} has no end on record")
        if len(ends) > 1:
            found["doubled"].append(f"{name} has ends {[status for _, status, _ in ends]}")
        if ends and command in recorded.commands:
            over_s = recorded.commands[command]["deadline_ns"] / SECOND_NS + GRACE_S
            late_s = ends[0][0] - over_s - overlap_s(away, over_s, ends[0][0])
            if late_s > SLACK_S:
                found["stuck"].append(f"{name} was open {late_s:.1f} s after deadline and grace")
    for verdict in recorded.granted.keys() | recorded.outcomes.keys():
        granted, outcomes = recorded.granted[verdict], recorded.outcomes[verdict]
        if (granted, outcomes) != (1, 1):
            found["outcomes"].append(f"{verdict}: {granted} grants, {outcomes} outcomes")
    for sent_as, count in recorded.proposals.items():
        if count > 1:
            found["doubled"].append(f"request {sent_as}, sent again, became {count} proposals")
    for row in requests:
        for command in row.get("answer", {}).get("ids", ()):
            # For a plan that waits for its turn, it is the verdict.
            if command not in recorded.ends and command not in recorded.granted:
                found["lost"].append(f"{command} was named in an answer and is not on record")
    return found


def operation_faults(
    recorded: CommandRecord, journals: Iterable[tuple[Row, Sequence[Row], bool]]
) -> dict[str, list[str]]:
    """Compare each trainer's journal with the record.

    ``journals`` are, for each incarnation of a trainer, the start on the timeline, the journal,
    and whether it was killed.
    """
    of_incarnation: dict[Incarnation, list[Row]] = defaultdict(list)
    for command in recorded.commands.values():
        of_incarnation[command["worker"], command["incarnation"]].append(command)
    found: dict[str, list[str]] = defaultdict(list)
    for start, journal, cut_short in journals:
        incarnation = recorded.pids.get(start["pid"])
        operations = Counter((row["event"], row.get("value")) for row in journal)
        commands: dict[tuple[str, Any], list[str]] = defaultdict(list)
        for command in of_incarnation[incarnation] if incarnation else ():
            do = command["do"]
            commands[do["verb"], do.get("value")].append(command["id"])
        for key in (operations.keys() | commands.keys()) if incarnation else operations.keys():
            if key[0] not in OPERATIONS or (key[0] == "join" and not start["standby"]):
                continue
            _compare(found, recorded, start["name"], key, operations[key], commands[key], cut_short)
    return found


def _compare(
    found: dict[str, list[str]],
    recorded: CommandRecord,
    name: str,
    key: tuple[str, Any],
    operations: int,
    commands: list[str],
    cut_short: bool,
) -> None:
    what = f"{name}: {key[0]}{'' if key[1] is None else f' {key[1]}'}"
    ends = [status for command in commands for _, status, _ in recorded.ends.get(command, ())]
    applied = ends.count("applied")
    if operations > len(commands):
        found["doubled"].append(f"{what} was done {operations} times for {len(commands)} commands")
    elif applied > operations:
        found["untrue"].append(f"{what} was done {operations} times and applied {applied} times")
    elif operations > applied and not cut_short:
        found["untrue"].append(f"{what} was done {operations} times and ended as {ends}")


def _name(recorded: CommandRecord, command: str) -> str:
    body = recorded.commands.get(command)
    return f"{command} ({body['do']['verb']} to {body['worker']})" if body else command
