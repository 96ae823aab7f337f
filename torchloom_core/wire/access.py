"""Who may do what: the roles of people, and requests about credentials.

==================  ==============================  =================
verb                body                            answer
==================  ==============================  =================
``access``          empty                           :class:`Access`
``access.revoke``   :class:`Revoke`                 ``Answer``
==================  ==============================  =================
"""

from typing import Annotated, Literal

import msgspec

from torchloom_core.wire.limits import Count, Name

PersonRole = Literal["viewer", "operator", "admin"]
"""A viewer reads, an operator also acts on the run, an admin also sees and revokes credentials."""

READS = frozenset({"status", "knobs"})
"""Verbs that only read."""

ACTS = frozenset(
    {
        "knob.set",
        "knob.unset",
        "propose",
        "approve",
        "deny",
        "actions.stop",
        "actions.resume",
        "annotate",
        "control.take",
        "control.release",
    }
)
"""Verbs that act on the run."""

ADMINISTERS = frozenset({"access", "access.revoke"})
"""Verbs about credentials."""

VERBS_OF: dict[PersonRole, frozenset[str]] = {
    "viewer": READS,
    "operator": READS | ACTS,
    "admin": READS | ACTS | ADMINISTERS,
}
"""The verbs that each role of a person may send."""


class Issued(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A person's credentials; ``expires_s`` 0: never; ``revoked_s`` 0: they are valid."""

    name: Name
    role: PersonRole
    key: Annotated[str, msgspec.Meta(pattern=r"\AU[A-Z2-7]{55}\Z")]
    issued_s: Count
    expires_s: Count = 0
    revoked_s: Count = 0


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Who has credentials of a run with the embedded broker.

    ``workers`` counts the incarnations that were given some, ``blocked`` are names of workers that
    are given none. ``join_expires_s`` is the end of those in ``join.json``, 0: they have none.
    """

    people: tuple[Issued, ...] = ()
    workers: int = 0
    blocked: tuple[Name, ...] = ()
    join_expires_s: Count = 0


class Revoke(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Revoke the credentials of a person, of a worker, or those for joining.

    A worker's name is blocked until the same request comes with ``undo``. After ``join`` the
    Weaver writes a new ``join.json``; workers that have joined are not affected.
    """

    kind: Literal["person", "worker", "join"]
    name: Name | None = None
    undo: bool = False

    def __post_init__(self) -> None:
        """Refuse a person or a worker without a name, and what cannot be undone."""
        if (self.name is None) != (self.kind == "join"):
            raise ValueError(f"need a name for a person or a worker, and none for join: {self}")
        if self.undo and self.kind != "worker":
            raise ValueError(f"undo is for workers, was {self.kind}: issue new credentials")
