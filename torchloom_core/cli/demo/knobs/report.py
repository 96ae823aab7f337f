"""What the demo of the knobs shows at the end: tables, and whether all held that it is to show."""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torchloom_core.cli.demo.knobs.landings import (
    Landing,
    bytes_by_mode,
    failures,
    land,
    weights_are_equal,
)
from torchloom_core.cli.demo.knobs.record import Asked
from torchloom_core.cli.demo.knobs.script import VICTIM
from torchloom_core.cli.demo.promises import check_promises, show_promises
from torchloom_core.cli.demo.steplog import Logs, differences
from torchloom_core.wire.requests import GUARD

_LEGEND = (
    "\n[dim]after step: the last one without it, as each group wrote it down; within: from asking "
    "until the last group had it; failed: steps of all groups that failed meanwhile[/]\n"
)
_MOST_OF_NONE = {"bf16": 0.51, "int8": 0.27}


@dataclass(frozen=True)
class Report:
    """A run that is over.

    Attributes
    ----------
    asked : list of Asked
        What was changed, from the Weaver's record.
    logs : dict of str to StepLog
        What each group wrote.
    killed_at : float
        When the victim was killed, s since the epoch.
    """

    asked: list[Asked]
    logs: Logs
    killed_at: float

    @cached_property
    def landings(self) -> list[Landing]:
        """Where each change landed, by the groups' logs."""
        return [land(asked, self.logs) for asked in self.asked]

    @cached_property
    def sent_bytes(self) -> dict[str, float]:
        """What a group sends in a step, by mode of compression."""
        return bytes_by_mode(self.logs)

    @cached_property
    def failures(self) -> tuple[int, list[str]]:
        """How many steps the kill cost, and each that failed for another reason, with its error."""
        return failures(self.logs, self.zero, self.killed_at)

    @property
    def zero(self) -> float:
        """The moment from which time is counted: that of the first change."""
        return self.asked[0].at

    def promises(self) -> dict[str, bool]:
        """Return what the demo is to show, and whether it came so."""
        astray = differences(self.logs)
        by_kill, others = self.failures
        steps = len({row["step"] for log in self.logs.values() for row in log.steps})
        none = self.sent_bytes.get("none", 0.0)
        landings = zip(self.asked, self.landings, strict=True)
        return {
            f"each of the {len(self.asked)} changes landed on all groups at one step": all(
                landing.is_at_one_step(self.logs) for landing in self.landings
            ),
            f"steps with different knobs in two groups: {len(astray)} of {steps}": not astray,
            f"what was under way as {VICTIM.group} was killed landed, and it came back with it": (
                any(
                    asked.at < self.killed_at < asked.at + landing.seconds
                    and VICTIM.group in landing.inherited
                    for asked, landing in landings
                )
            ),
            "the one that hurt was rolled back, and no other": self._hurt_was_undone(),
            f"failed steps: {by_kill} by the kill, {len(others)} by all else": not others,
            **{
                f"bytes of {mode}: {self.sent_bytes.get(mode, 0) / none if none else 0:.3f} "
                f"of none": 0 < self.sent_bytes.get(mode, 0) <= most * none
                for mode, most in _MOST_OF_NONE.items()
            },
            "final weights bitwise equal on all groups": weights_are_equal(self.logs),
        }

    def _hurt_was_undone(self) -> bool:
        hurt = [i for i, asked in enumerate(self.asked) if asked.hurt]
        undone = [i for i, asked in enumerate(self.asked) if asked.by == GUARD]
        return len(hurt) == 1 and undone == [hurt[0] + 1] and self.asked[undone[0]].result == "done"


def show(console: Console, report: Report) -> None:
    """Print the changes, the bytes of each mode, and what held."""
    table = Table(
        title="Knobs set on a live run\n", title_justify="left", box=None, padding=(0, 1, 0, 0)
    )
    for name in ("asked", "by", "change", "outcome", "after step", "within", "failed"):
        number = name in {"asked", "within", "failed"}
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for asked, landing in zip(report.asked, report.landings, strict=True):
        table.add_row(
            f"{asked.at - report.zero:+.1f} s",
            asked.by,
            asked.text.replace(", ", "\n"),
            asked.outcome,
            _steps_text(landing),
            f"{landing.seconds:.2f} s",
            str(landing.failed_steps),
        )
    console.print(table)
    console.print(_LEGEND)
    for asked in report.asked:
        if asked.hurt:
            console.print(f"rolled back: {asked.text}, since {asked.why}", highlight=False)
    none = report.sent_bytes.get("none", 0.0)
    sent = [
        f"{mode} {sent / 1000:.1f} kB" + (f" ({sent / none:.2f})" if none else "")
        for mode, sent in report.sent_bytes.items()
    ]
    console.print(f"sent by a group in a step: {', '.join(sent)}\n", highlight=False)
    show_promises(console, report.promises())
    _, others = report.failures
    for failure in others:
        console.print(f"       {escape(failure)}", highlight=False)


def check(report: Report) -> None:
    """Raise StateError if anything does not hold that the demo is to show."""
    check_promises(report.promises())


def write_summary(path: Path, report: Report, seed: int) -> None:
    """Write all that as JSON."""
    summary = {
        "seed": seed,
        "changes": [
            {"by": asked.by, "values": asked.values, "outcome": asked.outcome, **asdict(landing)}
            for asked, landing in zip(report.asked, report.landings, strict=True)
        ],
        "sent_bytes": report.sent_bytes,
        "promises": report.promises(),
    }
    path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


def _steps_text(landing: Landing) -> str:
    """Return the groups by the step that each wrote: ``g0 g2: 57``, ``g1: back at 90``."""
    groups: dict[str, list[str]] = {}
    for group, step in landing.last_without.items():
        groups.setdefault(str(step), []).append(group)
    for group, step in landing.inherited.items():
        groups.setdefault(f"back at {step}", []).append(group)
    return "\n".join(f"{' '.join(names)}: {text}" for text, names in groups.items())
