"""The results of the checkpoints demo: tables, and the checks."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torchloom_core.demos.checkpoints.incidents import Incident, Save, differing
from torchloom_core.demos.checkpoints.script import EVERY_S
from torchloom_core.demos.folder import show_promises
from torchloom_core.demos.steplog import StepLog
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.live.trajectory.recorded_recoveries import recorded_recoveries
from torchloom_core.live.trajectory.recovery_phases import PHASES, Recovery
from torchloom_core.wire.checkpoint_tiers import MEMORY, PATH, SAVED, TIERS
from torchloom_core.wire.messages import Note

_LARGEST_DIFFERENCE = 0.05
_LEGEND = (
    "[dim]lost: steps trained again, and their usual time; remote alone: had the job saved in the "
    "tier remote only[/]\n"
)


@dataclass(frozen=True)
class Recorded:
    """What the Weaver's record has: the recoveries, and what the saves of each tier cost.

    ``felt_s`` and ``bytes`` are of each save, by tier.
    """

    recoveries: list[Recovery]
    felt_s: dict[str, list[float]]
    bytes: dict[str, list[float]]

    @classmethod
    def read(cls, trajectory: Path) -> Self:
        """Read a trajectory."""
        felt_s, sizes = defaultdict(list), defaultdict(list)
        for record in read_epochs(trajectory):
            for recorded in record.inputs():
                note = recorded.message
                if isinstance(note, Note) and note.kind == SAVED:
                    tier, fields = str(note.fields["tier"]), note.fields
                    felt_s[tier].append(float(fields["felt_s"] or 0.0))
                    sizes[tier].append(float(fields["bytes"] or 0.0))
        return cls(recorded_recoveries(trajectory), dict(felt_s), dict(sizes))


@dataclass(frozen=True)
class Report:
    """The results of a finished run; ``undisturbed`` are the steps of the one without failures."""

    incidents: list[Incident]
    saves: list[Save]
    ranks: Sequence[StepLog]
    undisturbed: Sequence[StepLog]
    recorded: Recorded

    @cached_property
    def differing(self) -> tuple[int, list[str]]:
        """The losses compared with those of the undisturbed run, and those that differ."""
        return differing(self.ranks, self.undisturbed)

    @cached_property
    def recoveries(self) -> list[Recovery | None]:
        """The Weaver's account of each failure."""
        return [one.recovery_in(self.recorded.recoveries) for one in self.incidents]

    @property
    def zero(self) -> float:
        """Time zero: the first step, s since the epoch."""
        return min(float(log.steps[0]["t"]) for log in self.ranks)

    @property
    def last_every_s(self) -> dict[str, float]:
        """The intervals at the end, seconds by tier."""
        return dict(self.ranks[0].steps[-1]["every_s"])

    def promises(self) -> dict[str, bool]:
        """Return what the demo must show, and whether it did."""
        first, last = self.incidents[0], self.incidents[-1]
        compared, others = self.differing
        starts = {row["pid"] for row in self.ranks[0].steps}
        lost = [one.lost_steps for one in self.incidents]
        alone = [one.lost_steps_by_remote for one in self.incidents]
        off = [self._difference(number) for number in range(len(self.incidents))]
        before, after = (one.before.every_s[MEMORY] for one in (first, last))
        return {
            f"{compared} losses of {len(self.ranks)} ranks in {len(starts)} starts are bitwise "
            "those of an undisturbed run": compared > 0 and not others,
            f"{first.text} between two remote saves: restored from the memory of nodes": (
                first.tiers == (MEMORY,)
            ),
            f"{last.text}, and all copies of a shard in memory: restored from the path": (
                last.tiers == (PATH,)
            ),
            f"steps lost: {_listed(lost)}; with the tier remote alone {_listed(alone)}": all(
                own < others for own, others in zip(lost, alone, strict=True)
            ),
            f"the phases of each recovery add up to what was measured, within {max(off):.1%}": (
                max(off) <= _LARGEST_DIFFERENCE
            ),
            f"the interval of the tier memory follows the failures: {before:.1f} s before the "
            f"first, {after:.1f} s before the last": after < before,
        }

    def _difference(self, number: int) -> float:
        """Return by how much the phases differ from the measured time, relative; inf: unknown."""
        recovery, incident = self.recoveries[number], self.incidents[number]
        if recovery is None or recovery.ended_ns is None:
            return float("inf")
        return abs(sum(recovery.phases.values()) / incident.seconds - 1)


def restored_text(incident: Incident) -> str:
    """Return what a recovery brought back, in words."""
    where = " or ".join(incident.tiers) or "unknown"
    return (
        f"restored step {incident.from_step} from {where}: {incident.lost_steps} steps lost, "
        f"{incident.lost_steps_by_remote} with the tier remote alone; trains after "
        f"{incident.seconds:.1f} s"
    )


def show(console: Console, report: Report) -> None:
    """Print the failures, the phases of the recoveries, the intervals, and the checks."""
    for table in (_failures(report), _phases(report), _intervals(report)):
        console.print(table)
        console.print(_LEGEND if table.title == _FAILURES else "")
    show_promises(console, report.promises())
    for other in report.differing[1][:5]:
        console.print(f"       {escape(other)}", highlight=False)


_FAILURES = "Failures\n"


def _table(title: str, *names: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in names:
        justify = "left" if name in {"failure", "restored from", "phase", "tier"} else "right"
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    return table


def _failures(report: Report) -> Table:
    table = _table(
        _FAILURES, "", "failure", "after step", "restored from", "step", "lost", "remote alone"
    )
    for number, one in enumerate(report.incidents, 1):
        alone = one.lost_steps_by_remote
        table.add_row(
            str(number),
            one.text,
            str(one.before.step),
            ", ".join(one.tiers) or "nothing",
            str(one.from_step),
            f"{one.lost_steps}, {one.seconds_of(one.lost_steps):.1f} s",
            f"{alone}, {one.seconds_of(alone):.1f} s",
        )
    return table


def _phases(report: Report) -> Table:
    numbers = [f"failure {number}" for number in range(1, len(report.incidents) + 1)]
    table = _table("Recoveries: seconds by phase\n", "phase", *numbers)
    found = [one.phases if one else {} for one in report.recoveries]
    for phase in PHASES:
        if any(phase in phases for phases in found):
            cells = (f"{phases[phase]:.2f}" if phase in phases else "" for phases in found)
            table.add_row(phase, *cells)
    table.add_row("in total", *(f"{sum(phases.values()):.2f}" for phases in found))
    table.add_row("measured", *(f"{one.seconds:.2f}" for one in report.incidents))
    return table


def _intervals(report: Report) -> Table:
    before = [f"before {number}" for number in range(1, len(report.incidents) + 1)]
    table = _table(
        "Tiers, and their intervals in seconds\n",
        "tier", "saves", "MB", "costs", "script's", *before, "at the end",
    )  # fmt: skip
    for tier in TIERS:
        felt_s, sizes = report.recorded.felt_s.get(tier), report.recorded.bytes.get(tier)
        table.add_row(
            tier,
            str(sum(save.tier == tier for save in report.saves)),
            f"{statistics.median(sizes) / 1e6:.1f}" if sizes else "",
            f"{statistics.median(felt_s) * 1000:.0f} ms" if felt_s else "",
            f"{EVERY_S[tier]:.1f}",
            *(f"{one.before.every_s[tier]:.1f}" for one in report.incidents),
            f"{report.last_every_s[tier]:.1f}",
        )
    return table


def summary_of(report: Report, seed: int) -> dict[str, Any]:
    """Return the results for JSON."""
    return {
        "seed": seed,
        "incidents": [
            {
                **asdict(one),
                "seconds": one.seconds,
                "lost_steps": one.lost_steps,
                "lost_steps_by_remote": one.lost_steps_by_remote,
                "phases": recovery.phases if recovery else None,
            }
            for one, recovery in zip(report.incidents, report.recoveries, strict=True)
        ],
        "every_s": report.last_every_s,
        "felt_s": report.recorded.felt_s,
        "promises": report.promises(),
    }


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
