"""The protocol of effectors, through which the Weaver acts on systems outside the run."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from torchloom_core.wire.decisions import CordonOver, Notice, Outcome, Output, Verdict
from torchloom_core.wire.notices import EFFECTOR

Event = Verdict | Outcome | CordonOver | Notice
"""What an effector may subscribe to."""

BUILT_IN = ("workers", "lighthouse")
"""The Weaver's own targets, which have no table in the config."""

_NOT_SENT = (EFFECTOR, "stranger")
"""Kinds of notices that no effector gets: those on effectors, and one repeated at each tick."""


class Subscription(msgspec.Struct, frozen=True):
    """A kind of event that an effector gets.

    Attributes
    ----------
    event : type
        ``Verdict``, ``Outcome``, ``CordonOver`` or ``Notice``.
    actions : tuple of str
        Of verdicts and outcomes: only those of these kinds of action; empty: all.

    Examples
    --------
    >>> from torchloom_core.plugin import CordonNode, Outcome, Subscription
    >>> cordons = Subscription(Outcome, actions=("cordon", "uncordon"))
    >>> action = CordonNode(node="n1")
    >>> cordons.matches(
    ...     Outcome(verdict="p1", policy="x", action=action, result="done", detail="", took_s=0.0)
    ... )
    True
    """

    event: Any
    actions: tuple[str, ...] = ()

    def matches(self, event: Output) -> bool:
        """Return whether the effector gets this event."""
        if not isinstance(event, self.event):
            return False
        if isinstance(event, Notice):
            return event.kind not in _NOT_SENT
        action: Any = getattr(event, "action", None)
        return not self.actions or action.__struct_config__.tag in self.actions


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One event for one effector.

    Attributes
    ----------
    id : str
        ``e<epoch>.<seq>.<n>``, the event's place in the run's record; the same at each attempt.
    run : str
        The name of the run.
    ts_ns : int
        When it happened, ns since the Unix epoch.
    event : Verdict, Outcome, CordonOver or Notice
        The event.

    Examples
    --------
    >>> import msgspec
    >>> from torchloom_core.plugin import CordonOver, Delivery
    >>> over = CordonOver(node="n1")
    >>> msgspec.json.encode(Delivery(id="e1.7.1", run="demo", ts_ns=5, event=over)).decode()
    '{"id":"e1.7.1","run":"demo","ts_ns":5,"event":{"type":"cordon_over","node":"n1"}}'
    """

    id: str
    run: str
    ts_ns: int
    event: Event


@runtime_checkable
class Effector(Protocol):
    """Acts outside the run on what the Weaver decides: a scheduler, a webhook.

    ``Options`` are those of ``[effectors.<name>]``, next to ``mode``. Each attempt runs in a thread
    with an event loop of its own, so that ``send`` may block; with ``asyncio.to_thread`` it would
    hold up the end of the Weaver. An effector need not inherit from this class.

    Examples
    --------
    >>> import asyncio
    >>> import msgspec
    >>> from torchloom_core.plugin import CordonOver, Delivery, Effector, Subscription
    >>> class ToFile:
    ...     name = "to_file"
    ...
    ...     class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ...         path: str
    ...
    ...     def __init__(self, options):
    ...         self._path = options.path
    ...         self.subscriptions = (Subscription(CordonOver),)
    ...
    ...     async def send(self, delivery):
    ...         with open(self._path, "a") as file:
    ...             print(delivery.id, delivery.event.node, file=file)
    ...         return f"{delivery.event.node} written to {self._path}"
    >>> effector = ToFile(ToFile.Options(path="/dev/null"))
    >>> isinstance(effector, Effector)
    True
    >>> over = CordonOver(node="n1")
    >>> asyncio.run(effector.send(Delivery(id="e1.7.1", run="demo", ts_ns=0, event=over)))
    'n1 written to /dev/null'
    """

    @property
    def name(self) -> str:
        """Its name in the config: a class attribute."""

    @property
    def Options(self) -> type[msgspec.Struct]:
        """The options in the config: a nested class."""

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """The events that it gets."""

    async def send(self, delivery: Delivery) -> str | None:
        """Act on one event; return what was done, for the record.

        Called for one event at a time, in their order. An attempt that raises or takes more than
        10 s is repeated after a pause, with the same ``id``.

        Raises
        ------
        PluginError
            If another attempt would fail as well; the Weaver then gives this event up.
        """


class ActiveEffector(NamedTuple):
    """An effector as the config activates it."""

    name: str
    effector: Effector
    mode: Literal["act", "dry_run"]
