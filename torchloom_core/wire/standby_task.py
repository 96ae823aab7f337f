"""A standby task: work of a standby while it waits, reported piece by piece.

A piece is the JSON text in the field ``piece`` of a note of the task's own kind; ``command`` is
its command, and ``points`` of ``of`` points are done. Each standby task has its own module beside
this one.
"""

from typing import Annotated

import msgspec

from torchloom_core.wire.limits import Count, Id, Text

MOST_POINTS = 20_000
MOST_SECONDS = 3600.0

MOST_AT_ONCE = 512
"""Points that one piece has at most."""

MOST_TEXT = 65_536
"""Limit of the characters of a piece, twice the longest."""

Points = Annotated[int, msgspec.Meta(ge=0, le=MOST_POINTS)]
Duration = Annotated[float, msgspec.Meta(gt=0, le=MOST_SECONDS)]
Print = Annotated[str, msgspec.Meta(max_length=16, pattern="^[0-9a-f]*$")]
"""A fingerprint of weights, equal for equal weights; empty: unknown."""

MOST = 1e300
Number = Annotated[float, msgspec.Meta(ge=-MOST, le=MOST)]
"""A number of which many can be summed without overflow."""

Loss = Number | None
"""None: the loss was NaN, infinite or too large."""


class PieceNote(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a note that has a piece; other fields are ignored."""

    command: Id
    points: Count
    of: Count
    piece: Annotated[str, msgspec.Meta(max_length=MOST_TEXT)]


class End(msgspec.Struct, frozen=True, kw_only=True, tag_field="part", tag="end"):
    """The last piece; ``why`` is empty if the task is complete."""

    points: Points
    seconds: Number
    why: Text = ""
