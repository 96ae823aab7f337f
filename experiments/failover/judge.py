"""Read what the trainers and the Weavers wrote, and count what was lost, doubled or late."""

import itertools
import math
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from experiments.chaos import commands, record
from experiments.chaos.moments import Span
from torchloom_core.live.trajectory.layout import epochs
from torchloom_core.live.trajectory.reader import EpochRecord, read_epochs

LIMIT_S = 3.0
WAIT_S = 4.0
HOST_WAIT_S = 20.0
RUN = "chaos"


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
    root = _gathered(folder, findings, at["ending"])
    recorded = commands.read(root)
    requests = record.rows(folder / record.REQUESTS)
    always = [Span(at["begun"], at["ending"])]  # a Weaver is away at any time: none is "stuck"
    for kind, lines in commands.faults(recorded, requests, always).items():
        # A repeated request may find that the first one was ended before anything was sent.
        findings.blame(kind, [line for line in lines if not line.startswith("request ")])
    findings.blame("doubled", _carried_out_twice(root))
    starts = [row for row in timeline if row["event"] == "start" and row["what"] == "trainer"]
    journals = [(row, record.rows(folder / f"{row['name']}.journal"), False) for row in starts]
    for kind, lines in commands.operation_faults(recorded, journals).items():
        findings.blame(kind, lines)
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


def _gathered(folder: Path, findings: Findings, ending: float) -> Path:
    """Gather each epoch's record as others copied it, and measure how far behind it they were.

    What a leader wrote last and could not copy has had no effect: it was neither stored nor sent.
    """
    root = folder / "gathered"
    shutil.rmtree(root, ignore_errors=True)
    next_s = math.inf
    hosts = [host / "state" / "trajectory" / RUN for host in sorted(folder.glob("host-*"))]
    for epoch in sorted({epoch for host in hosts for epoch in epochs(host)}, reverse=True):
        name = f"epoch-{epoch:06d}"
        found = [host / name for host in hosts if (host / name / "meta.json").exists()]
        if not found:
            continue
        last_s = {one: _last_s(one) for one in found}
        own, *copies = sorted(found, key=lambda one: (-last_s[one], -_size(one)))
        # A frozen one writes some more once it goes on; and the end of the run ends the copies.
        if last_s[own] <= min(next_s, ending):
            findings.missing_s += [max(0.0, last_s[own] - last_s[one]) for one in copies]
        next_s = EpochRecord(own).meta.started_ns / 1e9
        shutil.copytree((copies or [own])[0], root / name)
    return root


def _carried_out_twice(root: Path) -> list[str]:
    """Return each request of which more than one proposal was carried out."""
    proposals: dict[str, list[str]] = {}
    done: set[str] = set()
    for epoch in read_epochs(root):
        sent_as = ""
        for line in epoch.lines():
            if line.n == 0:
                body = msgspec.json.decode(line.body) if line.kind == "request" else {}
                sent_as = body.get("sent_as", "")
            elif line.kind == "proposed" and sent_as:
                proposals.setdefault(sent_as, []).append(line.id)
            elif line.kind == "outcome":
                body = msgspec.json.decode(line.body)
                if body["result"] == "done":
                    done.add(body["verdict"])
    twice = {sent_as: done.intersection(ids) for sent_as, ids in proposals.items()}
    return [f"{sent_as}: {sorted(ids)}" for sent_as, ids in twice.items() if len(ids) > 1]


def _last_s(folder: Path) -> float:
    last = EpochRecord(folder).meta.started_ns / 1e9
    for line in EpochRecord(folder).lines():
        last = line.ts_ns / 1e9
    return last


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())
