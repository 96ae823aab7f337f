"""The results of the knobs demo: tables, and the checks."""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torchloom_core.demos.knobs.changes import (
    Landing,
    RecordedChange,
    bytes_by_mode,
    failures,
    land,
    weights_are_equal,
)
from torchloom_core.demos.knobs.script import VICTIM
from torchloom_core.demos.results import show_promises
from torchloom_core.demos.steplog import Logs, differences
from torchloom_core.wire.requests import GUARD

_LEGEND = (
    "\n[dim]after step: each group's last step before the change; within: from the request until "
    "the last group had applied it; failed: steps of all groups that failed in that time[/]\n"
)
_MOST_OF_NONE = {"bf16": 0.51, "int8": 0.27}


@dataclass(frozen=True)
class Report:
    """The results of a finished run, in which the victim was killed at ``killed_at``."""

    changes: list[RecordedChange]
    logs: Logs
    killed_at: float

    @cached_property
    def landings(self) -> list[Landing]:
        """Each change in the groups' step logs."""
        return [land(change, self.logs) for change in self.changes]

    @cached_property
    def sent_bytes(self) -> dict[str, float]:
        """Bytes that a group sends per step, by compression mode."""
        return bytes_by_mode(self.logs)

    @cached_property
    def failures(self) -> tuple[int, list[str]]:
        """Number of steps that failed by the kill, and the other failed steps with their errors."""
        return failures(self.logs, self.zero, self.killed_at)

    @property
    def zero(self) -> float:
        """Time zero: the request of the first change."""
        return self.changes[0].at

    def promises(self) -> dict[str, bool]:
        """Return what the demo must show, and whether it did."""
        differing = differences(self.logs)
        by_kill, others = self.failures
        steps = len({row["step"] for log in self.logs.values() for row in log.steps})
        none = self.sent_bytes.get("none", 0.0)
        landings = zip(self.changes, self.landings, strict=True)
        return {
            f"all groups applied each of the {len(self.changes)} changes at the same step": all(
                landing.is_at_one_step(self.logs) for landing in self.landings
            ),
            f"steps with different knobs in two groups: {len(differing)} of {steps}": not differing,
            f"the change during the kill landed, and {VICTIM.group} restarted with it": (
                any(
                    change.at < self.killed_at < change.at + landing.seconds
                    and VICTIM.group in landing.inherited
                    for change, landing in landings
                )
            ),
            "only the change that made the loss worse was rolled back": self._harm_was_undone(),
            f"failed steps: {by_kill} by the kill, {len(others)} by other causes": not others,
            **{
                f"bytes sent with {mode}: {self.sent_bytes.get(mode, 0) / none if none else 0:.3f} "
                "of those without compression": 0 < self.sent_bytes.get(mode, 0) <= most * none
                for mode, most in _MOST_OF_NONE.items()
            },
            "final weights bitwise equal on all groups": weights_are_equal(self.logs),
        }

    def _harm_was_undone(self) -> bool:
        worse = [i for i, change in enumerate(self.changes) if change.hurt]
        undone = [i for i, change in enumerate(self.changes) if change.by == GUARD]
        if len(worse) != 1 or undone != [worse[0] + 1]:
            return False
        return self.changes[undone[0]].result == "done"


def show(console: Console, report: Report) -> None:
    """Print the changes, the bytes sent in each mode, and the checks."""
    table = Table(
        title="Knobs set on a live run\n", title_justify="left", box=None, padding=(0, 1, 0, 0)
    )
    for name in ("requested", "by", "change", "outcome", "after step", "within", "failed"):
        number = name in {"requested", "within", "failed"}
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for change, landing in zip(report.changes, report.landings, strict=True):
        table.add_row(
            f"{change.at - report.zero:+.1f} s",
            change.by,
            change.text.replace(", ", "\n"),
            change.outcome,
            _steps_text(landing),
            f"{landing.seconds:.2f} s",
            str(landing.failed_steps),
        )
    console.print(table)
    console.print(_LEGEND)
    for change in report.changes:
        if change.hurt:
            console.print(f"rolled back: {change.text}, because {change.why}", highlight=False)
    none = report.sent_bytes.get("none", 0.0)
    sent = [
        f"{mode} {sent / 1000:.1f} kB" + (f" ({sent / none:.2f})" if none else "")
        for mode, sent in report.sent_bytes.items()
    ]
    console.print(f"sent by a group per step: {', '.join(sent)}\n", highlight=False)
    show_promises(console, report.promises())
    _, others = report.failures
    for failure in others:
        console.print(f"       {escape(failure)}", highlight=False)


def summary_of(report: Report, seed: int) -> dict[str, Any]:
    """Return the results for JSON."""
    return {
        "seed": seed,
        "changes": [
            {"by": change.by, "values": change.values, "outcome": change.outcome, **asdict(landing)}
            for change, landing in zip(report.changes, report.landings, strict=True)
        ],
        "sent_bytes": report.sent_bytes,
        "promises": report.promises(),
    }


def _steps_text(landing: Landing) -> str:
    """Return the groups by step: ``g0 g2: 57``, ``g1: back at 90``."""
    groups: dict[str, list[str]] = {}
    for group, step in landing.last_without.items():
        groups.setdefault(str(step), []).append(group)
    for group, step in landing.inherited.items():
        groups.setdefault(f"back at {step}", []).append(group)
    return "\n".join(f"{' '.join(names)}: {text}" for text, names in groups.items())
