"""The record of a run that several hosts kept: each epoch's own, and its copies.

What a leader wrote last and could not copy has had no effect: it was neither stored nor sent.
"""

import math
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from experiments.chaos.commands import CommandRecord
from torchloom_core.live.trajectory.layout import epochs
from torchloom_core.live.trajectory.reader import EpochRecord, read_epochs


@dataclass
class Gathered:
    """Each epoch's own record, and the record that counts: what each next leader knew."""

    own: Path
    copies: Path
    missing_s: list[float] = field(default_factory=list)
    """By how much copies were shorter, of leaders that were killed."""
    started_s: list[tuple[float, int]] = field(default_factory=list)
    """When each epoch had taken over, in order, and the number of the host that led it."""


def gather(folder: Path, run: str, ending: float) -> Gathered:
    """Gather what the hosts ``host-<number>`` have.

    An epoch that the next leader does not know has had no effect at all: it was replaced while it
    took over.
    """
    gathered = Gathered(folder / "gathered-own", folder / "gathered")
    for root in (gathered.own, gathered.copies):
        shutil.rmtree(root, ignore_errors=True)
    next_s, successor = math.inf, Path()
    hosts = [host / "state" / "trajectory" / run for host in sorted(folder.glob("host-*"))]
    for epoch in sorted({epoch for host in hosts for epoch in epochs(host)}, reverse=True):
        name = f"epoch-{epoch:06d}"
        found = [host / name for host in hosts if (host / name / "meta.json").exists()]
        if not found:
            continue
        last_s = {one: _last_s(one) for one in found}
        own = min(found, key=lambda one: (one / "meta.json").stat().st_mtime)
        copies = [one for one in found if one != own]
        # A frozen one writes some more once it goes on; and the end of the run ends the copies.
        if last_s[own] <= min(next_s, ending):
            gathered.missing_s += [max(0.0, last_s[own] - last_s[one]) for one in copies]
        next_s = EpochRecord(own).meta.started_ns / 1e9
        gathered.started_s.insert(0, (_begin_s(own), _number(folder, own)))
        shutil.copytree(own, gathered.own / name)
        counts = next((one for one in found if one.parent == successor), None)
        if counts or successor == Path():
            successor = own.parent
            shutil.copytree(counts or own, gathered.copies / name)
    return gathered


def fill_in(copied: CommandRecord, own: CommandRecord) -> None:
    """Add what a copy lacks of commands and grants that the next leader ended."""
    for command, body in own.commands.items():
        copied.commands.setdefault(command, body)
    for verdict in copied.outcomes.keys() - copied.granted.keys():
        copied.granted[verdict] += own.granted[verdict]
    for pid, incarnation in own.pids.items():
        copied.pids.setdefault(pid, incarnation)


def carried_out_twice(root: Path) -> list[str]:
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


def _number(folder: Path, epoch: Path) -> int:
    return int(epoch.relative_to(folder).parts[0].rpartition("-")[2])


def _begin_s(folder: Path) -> float:
    """Return when it had taken over: it begins to tick, or its last record if it never did."""
    last_s = EpochRecord(folder).meta.started_ns / 1e9
    for line in EpochRecord(folder).lines():
        last_s = line.ts_ns / 1e9
        if line.kind == "tick":
            break
    return last_s


def _last_s(folder: Path) -> float:
    last = EpochRecord(folder).meta.started_ns / 1e9
    for line in EpochRecord(folder).lines():
        last = line.ts_ns / 1e9
    return last
