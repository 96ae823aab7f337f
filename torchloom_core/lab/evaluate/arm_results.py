"""Results of an arm that all kinds of studies share."""

from typing import Literal

import msgspec

ArmKind = Literal["bound", "baseline", "oracle", "candidate"]
"""``bound``: an upper bound; ``oracle``: knows the future; ``candidate``: under test."""


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """Proposals and verdicts: counts of one run, or means over runs.

    A proposal that is repeated at the next tick counts again.

    Attributes
    ----------
    granted : dict of str to float
        Count by kind of action, such as ``migrate`` or ``cordon``.
    denied : dict of str to float
        Count by the arbiter's rule.
    why_denied : dict of str to str
        One reason of each rule.
    cordons : dict of str to float
        Granted cordons by node.
    alerts : tuple of str
        Texts of the first granted alerts, each once.
    """

    proposed: float = 0.0
    granted: dict[str, float] = {}
    denied: dict[str, float] = {}
    why_denied: dict[str, str] = {}
    cordons: dict[str, float] = {}
    alerts: tuple[str, ...] = ()
