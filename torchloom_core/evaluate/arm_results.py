"""What every study says of an arm, whatever it simulates."""

from typing import Literal

import msgspec

ArmKind = Literal["bound", "baseline", "oracle", "candidate"]
"""``bound``: nobody can be better; ``oracle``: knows the future; ``candidate``: what is tested."""


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """What policies asked for and what the arbiter said: counts of a run, or means over runs.

    A proposal that is made again at the next tick counts again.

    Attributes
    ----------
    granted : dict of str to float
        By kind of action, ``migrate`` or ``cordon``.
    denied : dict of str to float
        By the arbiter's rule.
    why_denied : dict of str to str
        By rule, one of its reasons.
    cordons : dict of str to float
        Cordons that were granted, by node.
    alerts : tuple of str
        What the first alerts said that were granted, each text once.
    """

    proposed: float = 0.0
    granted: dict[str, float] = {}
    denied: dict[str, float] = {}
    why_denied: dict[str, str] = {}
    cordons: dict[str, float] = {}
    alerts: tuple[str, ...] = ()
