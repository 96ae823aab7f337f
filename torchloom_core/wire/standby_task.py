"""A standby task: what a standby does alone while it waits; it reports piece by piece.

A piece is the JSON text in the field ``piece`` of a note of the standby task's own kind; the fields
``command``, ``points`` and ``of`` say whose it is, and how far it is. Each standby task has a
module of its own beside this one.
"""

from typing import Annotated

import msgspec

from torchloom_core.wire.limits import Count, Id, Text

MOST_POINTS = 20_000
MOST_SECONDS = 3600.0

MOST_AT_ONCE = 512
"""Points that one piece has at the most."""

MOST_TEXT = 65_536
"""Characters of a piece, of which none has half as many."""

Points = Annotated[int, msgspec.Meta(ge=0, le=MOST_POINTS)]
Duration = Annotated[float, msgspec.Meta(gt=0, le=MOST_SECONDS)]
Print = Annotated[str, msgspec.Meta(max_length=16, pattern="^[0-9a-f]*$")]
"""Of weights: equal ones have equal prints. Empty: they have none."""

MOST = 1e300
Number = Annotated[float, msgspec.Meta(ge=-MOST, le=MOST)]
"""Of which a great many can be added up."""

Loss = Number | None
"""None: it was no such number."""


class PieceNote(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a note that brings a piece; what else it has is not looked at."""

    command: Id
    points: Count
    of: Count
    piece: Annotated[str, msgspec.Meta(max_length=MOST_TEXT)]


class End(msgspec.Struct, frozen=True, kw_only=True, tag_field="part", tag="end"):
    """The last piece; ``why`` is empty where all was done."""

    points: Points
    seconds: Number
    why: Text = ""
