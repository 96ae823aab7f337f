"""Results of an arm that all kinds of studies share."""

from typing import Literal

import msgspec

ArmKind = Literal["bound", "baseline", "oracle", "candidate"]
"""``bound``: an upper bound; ``oracle``: knows the future; ``candidate``: under test."""


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """Proposals and verdicts: counts of one run, or means over runs.

    A proposal that is repeated at the next tick counts again. ``granted`` counts by kind of action,
    such as ``migrate`` or ``cordon``; ``denied`` by the arbiter's rule, with one reason of each in
    ``why_denied``; ``cordons`` by node. ``alerts`` has the texts of the first granted ones, each
    once.
    """

    proposed: float = 0.0
    granted: dict[str, float] = {}
    denied: dict[str, float] = {}
    why_denied: dict[str, str] = {}
    cordons: dict[str, float] = {}
    alerts: tuple[str, ...] = ()
