"""Read what the trainers and the Weavers wrote, and count what was lost, doubled or late."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from experiments.chaos import commands, record
from experiments.chaos.copies import carried_out_twice, gather
from experiments.chaos.moments import Span

LIMIT_S = 3.0
WAIT_S = 4.0
HOST_WAIT_S = 20.0
RUN = "chaos"

Journals = list[tuple[record.Row, list[record.Row], bool]]


@dataclass
class Findings:
    """What was counted, and each fault."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[str]] = field(default_factory=dict)
    took_s: list[float] = field(default_factory=list)
    missing_s: list[float] = field(default_factory=list)
    stall_s: float = 0.0

    def blame(self, kind: str, lines: list[str]) -> None:
        """Add faults of a kind."""
        if lines:
            self.faults.setdefault(kind, []).extend(lines)


def judge(folder: Path) -> Findings:
    """Judge a run by the trainers' logs and journals and the trajectories."""
    findings = Findings()
    timeline = record.rows(folder / record.TIMELINE)
    at = {row["event"]: row["t"] for row in timeline}
    _look_at_steps(findings, folder, timeline, at["begun"], at["ending"])
    for row in timeline:
        if row["event"] == "strike":
            findings.counts[f"{row['kind']}s"] += 1
        elif row["event"] == "taken_over":
            findings.took_s.append(row["seconds"])
            if row["seconds"] > LIMIT_S:
                findings.blame("late", [f"a take-over took {row['seconds']:.2f} s"])
        elif row["event"] == "ended":
            findings.blame("weaver ended", [f"{row['name']}: {row['status']}: {row['last']}"])
        elif row["event"] == "settled" and not row["at_rest"]:
            findings.blame("not settled", ["commands were open at the end"])
    gathered = gather(folder, RUN, at["ending"])
    root, findings.missing_s = gathered.copies, gathered.missing_s
    recorded = commands.read(root)
    requests = record.rows(folder / record.REQUESTS)
    always = [Span(at["begun"], at["ending"])]  # a Weaver is away at any time: none is "stuck"
    for kind, lines in commands.faults(recorded, requests, always).items():
        # A repeated request may find that the first one was ended before anything was sent.
        findings.blame(kind, [line for line in lines if not line.startswith("request ")])
    findings.blame("doubled", carried_out_twice(root))
    starts = [row for row in timeline if row["event"] == "start" and row["what"] == "trainer"]
    journals = [(row, record.rows(folder / f"{row['name']}.journal"), False) for row in starts]
    for kind, lines in commands.operation_faults(recorded, journals).items():
        findings.blame(kind, lines)
    findings.blame("fence", _fence_faults(recorded, journals))
    struck = [row["t"] for row in timeline if row["event"] == "strike"]
    findings.counts["strikes while a change of all ranks was made"] = _strikes_of_changes(
        recorded, struck
    )
    findings.counts["commands"] = len(recorded.ends)
    for ends in recorded.ends.values():
        findings.counts.update(f"commands {status}" for _, status, _ in ends)
    answers = [row for row in requests if row["event"] == "request"]
    findings.counts["requests"] = len({row["body"]["id"] for row in answers})
    for row in (row for row in answers if row["answered"] and not row["answer"].get("ok")):
        findings.counts["requests refused"] += 1
        findings.counts[f"refused: {str(row['answer'].get('text'))[:80]}"] += 1
    for path in sorted(folder.glob("weaver-*.err")):
        if "Traceback" in path.read_text(errors="replace"):
            findings.blame("tracebacks", [path.name])
    return findings


def _fence_faults(recorded: commands.CommandRecord, journals: Journals) -> list[str]:
    """Return the changes that ranks made at different steps, or that the record has wrong.

    A successor may set the value that is desired once more.
    """
    steps: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for start, rows, _ in journals:
        for row in rows:
            if row["event"] == "set_shared":
                steps[row["value"]][start["pid"]].append(row["step"])
    applied: Counter[tuple[int, int]] = Counter()
    pids = {incarnation: pid for pid, incarnation in recorded.pids.items()}
    for command, body in _changes(recorded):
        value, pid = body["do"]["do"]["values"]["shared"], pids[body["worker"], body["incarnation"]]
        ends = [status for _, status, _ in recorded.ends.get(command, ())]
        applied[value, pid] += ends.count("applied")
    found = []
    for value, at in steps.items():
        if len(set(map(tuple, at.values()))) > 1 or len(at) < len(journals):
            found.append(f"shared {value}: at steps {sorted(at.values())}")
    made = Counter({(value, pid): len(at[pid]) for value, at in steps.items() for pid in at})
    return found + [
        f"shared {one[0]}: made {made[one]} times, applied {applied[one]} times"
        for one in applied.keys() | made.keys()
        if applied[one] != made[one]
    ]


def _strikes_of_changes(recorded: commands.CommandRecord, struck: list[float]) -> int:
    spans = [
        (recorded.issued_s[command], recorded.ends[command][0][0])
        for command, _ in _changes(recorded)
        if command in recorded.issued_s and recorded.ends[command]
    ]
    return sum(any(begin < t < end for begin, end in spans) for t in struck)


def _changes(recorded: commands.CommandRecord) -> Iterator[tuple[str, record.Row]]:
    """Yield the commands that change all ranks at one step."""
    for command, body in recorded.commands.items():
        if body["do"]["verb"] == "fenced_change":
            yield command, body


def _look_at_steps(
    findings: Findings, folder: Path, timeline: list[record.Row], begun: float, ending: float
) -> None:
    starts = [row for row in timeline if row["event"] == "start" and row["what"] == "trainer"]
    limit_s = HOST_WAIT_S if any(row.get("kind") == "host" for row in timeline) else WAIT_S
    for start in starts:
        rows = [row for row in record.rows(folder / f"{start['name']}.jsonl") if "committed" in row]
        rows = [row for row in rows if begun <= row["t"] < ending]
        findings.counts["steps"] += len(rows)
        failed = [row for row in rows if not row["committed"]]
        findings.blame("failed steps", [f"{start['name']}: step {row['step']}" for row in failed])
        for before, after in itertools.pairwise(rows):
            if after["t"] - before["t"] > limit_s:
                wait = f"{start['name']}: {after['t'] - before['t']:.1f} s to step {after['step']}"
                findings.blame("waits", [wait])
            findings.stall_s = max(findings.stall_s, after["t"] - before["t"])
    ended = [row for row in timeline if row["event"] == "end" and row["t"] < ending]
    findings.blame("trainers died", [f"{row['name']}: {row['last']}" for row in ended])
