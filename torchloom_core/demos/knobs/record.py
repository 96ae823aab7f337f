"""Read the granted knob changes and their outcomes from the Weaver's trajectory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchloom_core.live.trajectory.layout import run_folder
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.wire.actions import new_values
from torchloom_core.wire.capabilities import json_decoder
from torchloom_core.wire.decisions import Judged, Outcome, Verdict
from torchloom_core.wire.limits import KnobValues
from torchloom_core.wire.requests import GUARD

Decision = Verdict | Outcome | Judged


@dataclass(frozen=True)
class RecordedChange:
    """A granted change of knobs.

    Attributes
    ----------
    by : str
        ``operator`` or ``guard``.
    at : float
        Time of the request, s since the epoch.
    result : str
        ``done``, ``partial`` or ``undone``; empty: the change did not end.
    hurt : bool or None
        The guard's judgement; None: the change had no guard.
    why : str
        The guard's reason.
    """

    by: str
    values: KnobValues
    at: float
    result: str = ""
    hurt: bool | None = None
    why: str = ""

    @property
    def text(self) -> str:
        """The knobs and their values."""
        return ", ".join(f"{knob} {value}" for knob, value in self.values.items())

    @property
    def outcome(self) -> str:
        """The outcome as text."""
        if self.hurt is None or self.result != "done":
            return self.result
        return "rolled back" if self.hurt else "done, not worse"


def changes_in(state_dir: Path) -> list[RecordedChange]:
    """Return the changes that were granted, oldest first, from a Weaver's trajectory."""
    decoder = json_decoder(Decision)
    tags = {kind.__struct_config__.tag for kind in (Verdict, Outcome, Judged)}
    return changes_of(
        [
            (line.ts_ns / 1e9, decoder.decode(line.body))
            for epoch_record in read_epochs(run_folder(state_dir, "demo"))
            for line in epoch_record.lines()
            if line.io == "out" and line.kind in tags
        ]
    )


def changes_of(record: Sequence[tuple[float, Decision]]) -> list[RecordedChange]:
    """Return the changes of knobs that were granted, oldest first."""
    results = {one.verdict: one.result for _, one in record if isinstance(one, Outcome)}
    judged = {one.verdict: one for _, one in record if isinstance(one, Judged)}
    changes = []
    for at, one in record:
        if isinstance(one, Verdict) and one.granted and (values := new_values(one.action)):
            by = GUARD if one.policy == GUARD else "operator"
            result = results.get(one.proposal, "")
            change = RecordedChange(by=by, values=values, at=at, result=result)
            if judgement := judged.get(one.proposal):
                change = replace(change, hurt=judgement.hurt, why=judgement.text)
            changes.append(change)
    return changes
