"""Which changes of knobs were asked for, and what the Weaver says of them, on its record."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from torchloom_core.trajectory.layout import run_folder
from torchloom_core.trajectory.reader import read_epochs
from torchloom_core.wire.actions import new_values
from torchloom_core.wire.events import Judged, Outcome, Verdict
from torchloom_core.wire.messages import KnobValues
from torchloom_core.wire.requests import GUARD

Told = Verdict | Outcome | Judged


@dataclass(frozen=True)
class Asked:
    """A change that was granted.

    Attributes
    ----------
    by : str
        ``operator`` or ``guard``.
    at : float
        When it was asked for, s since the epoch.
    result : str
        ``done``, ``partial`` or ``undone``; empty: it did not end.
    hurt : bool or None
        What the guard said of it; None: nobody watched over it.
    why : str
        The guard's words.
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
        """What came of it, in a word or two."""
        if self.hurt is None or self.result != "done":
            return self.result
        return "rolled back" if self.hurt else "kept"


def asked_in(state_dir: Path) -> list[Asked]:
    """Return the changes that were granted, oldest first, from a Weaver's trajectory."""
    decoder = msgspec.json.Decoder(Told)
    tags = {kind.__struct_config__.tag for kind in (Verdict, Outcome, Judged)}
    return changes_of(
        [
            (line.ts_ns / 1e9, decoder.decode(line.body))
            for epoch_record in read_epochs(run_folder(state_dir, "demo"))
            for line in epoch_record.lines()
            if line.io == "out" and line.kind in tags
        ]
    )


def changes_of(record: Sequence[tuple[float, Told]]) -> list[Asked]:
    """Return the changes of knobs that were granted, oldest first."""
    results = {told.verdict: told.result for _, told in record if isinstance(told, Outcome)}
    judged = {told.verdict: told for _, told in record if isinstance(told, Judged)}
    changes = []
    for at, told in record:
        if isinstance(told, Verdict) and told.granted and (values := new_values(told.action)):
            by = GUARD if told.policy == GUARD else "operator"
            asked = Asked(by=by, values=values, at=at, result=results.get(told.proposal, ""))
            if judgement := judged.get(told.proposal):
                asked = replace(asked, hurt=judgement.hurt, why=judgement.text)
            changes.append(asked)
    return changes
