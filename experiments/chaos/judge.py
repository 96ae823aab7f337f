"""Attribute the failures of a disturbed run to the disturbances, or to torchLoom."""

import itertools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from experiments.chaos import commands, record
from experiments.chaos.copies import carried_out_twice, fill_in, gather
from experiments.chaos.moments import (
    DETECT_S,
    Span,
    away_of_cluster,
    died_alone,
    disturbances,
    down,
    overlap_s,
)
from experiments.chaos.record import Row
from torchloom_core.live.trajectory.reader import read_epochs

ANSWER_S = 1.0
BACK_S = 2.0
"""Time for the Weaver to reconnect to its broker, and to process what has arrived meanwhile."""
BLOCKED_S = 1.0
WAIT_S = 4.0
AFTER_S = 12.0
"""Time that torchft may need after a trainer's end: a joiner waits, a timeout expires."""
LIGHTHOUSE_S = 20.0
"""Time for another lighthouse to start, and to wait for the groups that train."""
RUN = "chaos"
_PEER_GONE = "got exception in pg configure"
OURS = re.compile(r'File "[^"]*/(torchloom_\w+/(?!demo_trainer\.py)[^"]*)", line (\d+)')
BY_US = (
    "failed steps",
    "waits",
    "lost",
    "doubled",
    "stuck",
    "outcomes",
    "untrue",
    "orphans",
    "weaver ended",
    "tracebacks",
    "silence",
    "replays",
    "trainers died",
    "not settled",
)


@dataclass
class Findings:
    """Counts, and each failure that torchLoom caused."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in BY_US})
    explained_share: float = 0.0
    seconds: float = 0.0
    slowest_answer_s: float = 0.0

    @property
    def ours(self) -> int:
        """The number of failures that torchLoom caused."""
        return sum(map(len, self.faults.values()))

    def blame(self, found: dict[str, list[str]]) -> None:
        """Add faults."""
        for kind, lines in found.items():
            self.faults[kind] += lines


def judge(folder: Path) -> Findings:
    """Read all files of a run."""
    timeline = record.rows(folder / record.TIMELINE)
    requests = record.rows(folder / record.REQUESTS)
    findings = Findings()
    _count_strikes(findings, timeline)
    _look_at_steps(findings, folder, timeline, requests)
    kept = _kept(folder, timeline)
    _look_at_commands(findings, folder, timeline, requests, kept)
    _look_at_ends(findings, folder, timeline)
    _look_at_answers(findings, requests, kept.away)
    _look_for_tracebacks(findings, folder)
    _replay(findings, kept.own)
    return findings


class Kept(NamedTuple):
    """Where the run's record is, and when it could not answer."""

    own: Path
    copies: Path | None
    away: list[Span]


def _kept(folder: Path, timeline: Sequence[Row]) -> Kept:
    hosts = len(list(folder.glob("host-*")))
    if not hosts:
        spans = down(timeline, "weaver") + down(timeline, "broker")
        return Kept(folder / "state" / "trajectory" / RUN, None, spans)
    gathered = gather(folder, RUN, _bounds(timeline)[1])
    spans = away_of_cluster(timeline, gathered.started_s, hosts)
    return Kept(gathered.own, gathered.copies, spans)


def _count_strikes(findings: Findings, timeline: Sequence[Row]) -> None:
    for row in timeline:
        if row["event"] == "strike":
            findings.counts[f"{row['kind']} {row['target']}"] += 1
            findings.counts[f"{row['kind']}s"] += 1
        elif row["event"] == "omitted":
            findings.counts["omitted"] += 1


# --- the training --------------------------------------------------------------------------


def _look_at_steps(
    findings: Findings, folder: Path, timeline: Sequence[Row], requests: Sequence[Row]
) -> None:
    struck = disturbances(timeline)
    starts = [row for row in timeline if row["event"] == "start" and row["what"] == "trainer"]
    begun, ending = _bounds(timeline)
    windows = [Span(span.begin, span.end + DETECT_S) for span in struck]
    findings.seconds = ending - begun
    findings.explained_share = overlap_s(windows, begun, ending) / max(findings.seconds, 1e-9)
    pauses = list(_pauses(requests))
    leaves = [
        Span(row["t"], row["t"] + WAIT_S, "drained")
        for start in starts
        for row in record.rows(folder / f"{start['name']}.journal")
        if row["event"] == "drain"
    ]
    lights = [
        Span(row["t"], row["t"] + row["lasts_s"] + LIGHTHOUSE_S, "lighthouse struck")
        for row in timeline
        if row["event"] == "strike" and row["target"] in ("lighthouse", "host")
    ]
    patient = [Span(span.begin, span.end + AFTER_S, span.why) for span in struck]
    patient += pauses + leaves + lights
    for start in starts:
        name = start["name"]
        rows = [row for row in record.rows(folder / f"{name}.jsonl") if "committed" in row]
        rows = [row for row in rows if row["t"] < ending]
        findings.counts["steps"] += len(rows)
        for row in rows:
            if not row["committed"]:
                _blame_step(findings, name, row, struck)
        for before, after in itertools.pairwise(rows):
            if after["t"] - before["t"] > WAIT_S:
                what = f"{name}: {after['t'] - before['t']:.1f} s to step {after['step']}"
                _blame_wait(findings, what, before["t"], after["t"], patient)
        blocked = record.rows(folder / f"{name}.journal")
        for row in blocked:
            if row["event"] == "blocked" and row["seconds"] > BLOCKED_S and row["t"] < ending:
                what = f"{name}: loom.step blocked it for {row['seconds']:.1f} s"
                frozen = [span for span in struck if span.why == "frozen"]
                _blame_wait(findings, what, row["t"] - row["seconds"], row["t"], pauses + frozen)


def _blame_step(findings: Findings, name: str, row: Row, struck: Sequence[Span]) -> None:
    begin = row["t"] - row["duration_s"]
    for span in struck:
        if Span(span.begin, span.end + DETECT_S).meets(begin, row["t"]):
            findings.counts[f"failed steps, a trainer {span.why}"] += 1
            return
    findings.faults["failed steps"].append(f"{name}: step {row['step']} at {row['t']:.2f}")


def _blame_wait(
    findings: Findings, what: str, begin: float, end: float, reasons: Sequence[Span]
) -> None:
    for span in reasons:
        if span.meets(begin, end):
            findings.counts[f"waits, {span.why}"] += 1
            return
    findings.faults["waits"].append(f"{what} at {end:.2f}")


def _pauses(requests: Sequence[Row]) -> Iterator[Span]:
    since = None
    for row in requests:
        if row["event"] == "pause":
            since = row["t"]
        elif row["event"] == "resumed" and since is not None:
            yield Span(since, row["t"] + BLOCKED_S, "paused")
            since = None
    if since is not None:
        yield Span(since, since + 60, "paused")


def _bounds(timeline: Sequence[Row]) -> tuple[float, float]:
    at = {row["event"]: float(row["t"]) for row in timeline}
    return at["begun"], at.get("ending", timeline[-1]["t"])


# --- commands ------------------------------------------------------------------------------


def _look_at_commands(
    findings: Findings,
    folder: Path,
    timeline: Sequence[Row],
    requests: Sequence[Row],
    kept: Kept,
) -> None:
    recorded = commands.read(kept.copies or kept.own)
    if kept.copies:
        fill_in(recorded, commands.read(kept.own))
        recorded.proposals.clear()  # the first of two may have had no effect
        findings.blame({"doubled": carried_out_twice(kept.copies)})
    away = [span._replace(end=span.end + BACK_S) for span in kept.away]
    findings.blame(commands.faults(recorded, requests, away + recorded.backlogs))
    killed = {row["name"] for row in timeline if row["event"] == "end" and row.get("struck")}
    journals = []
    for row in timeline:
        if row["event"] == "start" and row["what"] == "trainer":
            journal = record.rows(folder / f"{row['name']}.journal")
            cut_short = row["name"] in killed or _muted(row["name"], journal, timeline)
            journals.append((row, journal, cut_short))
    findings.blame(commands.operation_faults(recorded, journals))
    findings.counts["commands"] = len(recorded.ends)
    findings.counts["grants"] = len(recorded.granted)
    findings.counts["lives of the Weaver"] = len(list(read_epochs(kept.own)))
    for ends in recorded.ends.values():
        findings.counts.update(f"commands {status}" for _, status, _ in ends)
    findings.counts.update({f"outcomes {what}": count for what, count in recorded.results.items()})
    answers = [row for row in requests if row["event"] == "request"]
    findings.counts["requests"] = len(answers)
    findings.counts["requests unanswered"] = sum(not row["answered"] for row in answers)


def _muted(name: str, journal: Sequence[Row], timeline: Sequence[Row]) -> bool:
    """Return whether a trainer's sidecar was killed after the trainer had left by a drain.

    The trainer has handed over its last reports by then, and starts no other sidecar.
    """
    left = [row["t"] for row in journal if row["event"] == "drain"]
    return bool(left) and any(
        row["event"] == "strike"
        and (row["target"], row["kind"], row["name"]) == ("sidecar", "kill", name)
        and row["t"] > left[-1]
        for row in timeline
    )


# --- the processes -------------------------------------------------------------------------


def _look_at_ends(findings: Findings, folder: Path, timeline: Sequence[Row]) -> None:
    _, ending = _bounds(timeline)
    struck = [Span(s.begin, s.end + AFTER_S) for s in disturbances(timeline) if s.why != ALONE]
    for row in timeline:
        if row["event"] == "end" and row["t"] < ending:
            if row["what"] == "weaver" and not row["struck"]:
                line = f"{row['name']}: status {row['status']}: {row['last']}"
                findings.faults["weaver ended"].append(line)
            elif row["what"] == "trainer" and died_alone(row):
                line = f"{row['name']}: status {row['status']}: {row['last']}"
                ours = any(_tracebacks(folder / f"{row['name']}.err"))
                if not ours and any(span.meets(row["t"], row["t"]) for span in struck):
                    findings.counts["trainers that torchft ended after a strike"] += 1
                else:
                    findings.faults["trainers died"].append(line)
        elif row["event"] in ("orphan", "left_over"):
            findings.faults["orphans"].append(row["command"])
        elif row["event"] == "settled" and not (row["at_rest"] and row["controlled"]):
            line = f"at rest {row['at_rest']}, controlled {row['controlled']}"
            findings.faults["not settled"].append(line)
        elif row["event"] == "stopped" and row["status"] != 0:
            line = f"recorded to stop, it ended with status {row['status']}"
            findings.faults["weaver ended"].append(line)


ALONE = "ended by itself"


def _look_at_answers(findings: Findings, requests: Sequence[Row], spans: Sequence[Span]) -> None:
    away = [Span(span.begin - 0.1, span.end + BACK_S) for span in spans]
    for row in requests:
        if row["event"] != "request" or row["verb"] not in ("status", "actions.stop"):
            continue
        if any(span.meets(row["began"], row["began"] + ANSWER_S) for span in away):
            continue
        findings.counts["requests that are owed an answer"] += 1
        findings.slowest_answer_s = max(findings.slowest_answer_s, row["seconds"])
        if not row["answered"] or row["seconds"] > ANSWER_S:
            line = f"{row['verb']} at {row['began']:.2f}: {row['seconds']:.2f} s {row['error']}"
            findings.faults["silence"].append(line)


def _look_for_tracebacks(findings: Findings, folder: Path) -> None:
    for path in sorted(folder.glob("*.err")):
        findings.faults["tracebacks"] += _tracebacks(path)


def _tracebacks(path: Path) -> list[str]:
    """Return one line for each traceback in a log that includes torchLoom's code.

    torchft's own is left out, if a peer that was killed as the quorum formed cannot be reached:
    it configures torchLoom's process group, which wraps gloo's.
    """
    of_trainer = not path.name.startswith(("weaver", "person"))
    found = []
    before, *texts = path.read_text(errors="replace").split("Traceback (most recent call last):")
    for text in texts:
        is_torchfts = _PEER_GONE in before.strip("\n").rpartition("\n")[2]
        before = text
        if is_torchfts:
            continue
        lines = text.strip("\n").splitlines()
        last = next((i for i, line in enumerate(lines) if not line.startswith(" ")), len(lines) - 1)
        places = OURS.findall("\n".join(lines[: last + 1]))
        if places or not of_trainer:
            place = "{}:{}".format(*places[-1]) if places else "?"
            found.append(f"{path.name}: {lines[last][:200]} ({place})")
    return found


def _replay(findings: Findings, root: Path) -> None:
    command = [sys.executable, "-m", "torchloom_core.cli", "trajectory", "replay", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    incarnations = findings.counts["lives of the Weaver"]
    same = done.stdout.count("all the same")
    findings.counts["replays that are all the same"] = same
    if done.returncode != 0 or same != incarnations:
        tail = (done.stdout + done.stderr).strip()[-300:]
        findings.faults["replays"].append(f"{same} of {incarnations} replay the same: {tail}")
