"""Where the seconds of a worker's start went, until its first committed step.

A worker reports them in notes of the kind ``start_phases``: one whenever a phase begins for the
first time, and the last at its first committed step. The phases of one worker follow each other
without a gap, so they add up to the time since ``began_ns``.
"""

from typing import Annotated

import msgspec

from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.limits import MAX_SHORT_TEXT, Stamp
from torchloom_core.wire.messages import FieldValue, Note

START_PHASES = "start_phases"
"""The kind of these notes."""

IMPORT, JOIN, BUILD, COMPILE = "import", "join", "build", "compile"
RESTORE, DATA_LOADER = "restore", "data_loader"
QUORUM, STATE_TRANSFER, FIRST_STEP = "quorum", "state_transfer", "first_step"

PHASES = (
    IMPORT,
    JOIN,
    BUILD,
    COMPILE,
    RESTORE,
    DATA_LOADER,
    QUORUM,
    STATE_TRANSFER,
    FIRST_STEP,
)
"""All phases of a start, in the order in which they are shown."""

_LONGEST_S = 1e9
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=_LONGEST_S)]
_Phase = Annotated[str, msgspec.Meta(max_length=MAX_SHORT_TEXT)]


class _Fields(msgspec.Struct):
    began_ns: Stamp
    phase: _Phase = ""
    joined: bool = False


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The start of a worker so far.

    Attributes
    ----------
    began_ns : int
        The start of its process, of a standby when it joined, ns since the epoch by its own clock.
    phase : str
        The phase that it is in, empty once its first step is committed.
    joined : bool
        Whether it had waited as a standby.
    seconds : dict of str to float
        Phase to seconds by a monotonic clock; phases that did not occur are missing.
    """

    began_ns: int
    phase: str
    joined: bool
    seconds: dict[str, float]

    def fields(self) -> dict[str, FieldValue]:
        """Return it as the fields of a note."""
        seconds = {f"{name}_s": spent_s for name, spent_s in self.seconds.items()}
        return {
            "began_ns": self.began_ns, "phase": self.phase, "joined": self.joined, **seconds
        }  # fmt: skip


def start_in(note: Note) -> Start | None:
    """Return the start that a note reports, None for any other note."""
    if note.kind != START_PHASES:
        return None
    names = [name for name in PHASES if f"{name}_s" in note.fields]
    try:
        about = msgspec.convert(note.fields, _Fields)
        seconds = [msgspec.convert(note.fields[f"{name}_s"], _Seconds) for name in names]
    except UNREADABLE:
        return None
    return Start(
        began_ns=about.began_ns,
        phase=about.phase,
        joined=about.joined,
        seconds=dict(zip(names, seconds, strict=True)),
    )
