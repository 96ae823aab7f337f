"""The tests for all effectors; an effector's own tests subclass them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from torchloom_core.floor.first_done import end_all
from torchloom_core.interface.contract import subscriptions_problem
from torchloom_core.interface.effector import ActiveEffector, Effector, Event
from torchloom_core.live.weaver.effectors import EffectorOutbox
from torchloom_core.testing import checks
from torchloom_core.wire.events import DeliveryStatus

_PATIENCE_S = 120.0


class EffectorContract:
    """Subclass it as ``class TestMyEffector(EffectorContract)`` and pytest runs it.

    The events go through the Weaver's own outbox.

    Attributes
    ----------
    effector_class : type
        The effector under test.
    options : dict
        Its options, as under ``[effectors.<name>]`` in ``torchloom.toml``.
    events : sequence of Verdict, Outcome, CordonOver or Notice
        Events that it subscribed to, at least one for each subscription.

    Examples
    --------
    >>> import contextlib
    >>> import msgspec
    >>> from torchloom_core.plugin import Notice, Subscription
    >>> from torchloom_core.testing import EffectorContract
    >>> board = {}
    >>> class Pin:
    ...     name = "pin"
    ...     subscriptions = (Subscription(Notice),)
    ...
    ...     class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ...         pass
    ...
    ...     def __init__(self, options):
    ...         pass
    ...
    ...     async def send(self, delivery):
    ...         if board is None:
    ...             raise OSError("no board")
    ...         board[delivery.id] = delivery.event.text
    >>> class TestPin(EffectorContract):
    ...     effector_class = Pin
    ...     events = (Notice(kind="fault", text="g0-0 exited"),)
    ...
    ...     def effects(self):
    ...         return len(board)
    ...
    ...     @contextlib.contextmanager
    ...     def unreachable(self):
    ...         global board
    ...         kept, board = board, None
    ...         yield
    ...         board = kept
    >>> TestPin().test_an_event_that_is_sent_twice_has_one_effect()
    >>> board
    {'e1.1.1': 'g0-0 exited'}
    """

    effector_class: ClassVar[type[Any]]
    options: ClassVar[Mapping[str, Any]] = {}
    events: ClassVar[Sequence[Event]]

    def effects(self) -> Any:
        """Return what the effector has done outside so far, such as a number; nothing is false."""
        raise NotImplementedError

    def unreachable(self) -> AbstractContextManager[object]:
        """Return a context in which the system that the effector acts on cannot be reached."""
        raise NotImplementedError

    def make(self) -> Effector:
        """Return a new effector with the options."""
        effector: Effector = checks.build(self.effector_class, self.options)
        return effector

    def send(
        self,
        events: Sequence[Event],
        on_result: Callable[[DeliveryStatus], None] = lambda status: None,
    ) -> list[DeliveryStatus]:
        """Return the results of events that the Weaver's outbox delivers to a new effector."""
        return asyncio.run(_sent(self.make(), events, on_result))

    def test_its_name_and_options_fit_the_config(self) -> None:
        """Check ``name`` and ``Options``."""
        checks.check_class(self.effector_class)

    def test_it_subscribes_to_the_events(self) -> None:
        """Check ``subscriptions``, and that each has one of ``events`` and vice versa."""
        effector = self.make()
        problem = subscriptions_problem(effector)
        assert not problem, problem
        for subscription in effector.subscriptions:
            assert any(map(subscription.matches, self.events)), f"need an event for {subscription}"
        for event in self.events:
            matching = any(one.matches(event) for one in effector.subscriptions)
            assert matching, f"need a subscription to {event}"

    def test_it_acts_on_each_event(self) -> None:
        """Check that each event is delivered at the first attempt, and that they have effects."""
        failed = [status for status in self.send(self.events) if status.result != "delivered"]
        assert not failed, f"need each event delivered at once, was {failed[0]}"
        assert self.effects(), f"need effects of the events, was {self.effects()!r}"

    def test_an_event_that_is_sent_twice_has_one_effect(self) -> None:
        """Check that a repeated delivery, which has the same id, changes nothing."""
        self.send(self.events)
        before = self.effects()
        self.send(self.events)
        assert self.effects() == before, "need no second effect of a repeated id"

    def test_a_failed_event_is_delivered_later(self) -> None:
        """Check that a failure is an exception, not a hang, and that the next attempt works."""
        down = self.unreachable()
        down.__enter__()

        def repair(status: DeliveryStatus) -> None:
            if status.result == "retrying":
                down.__exit__(None, None, None)

        results = [status.result for status in self.send(self.events[:1], repair)]
        assert results == ["retrying", "delivered"], f"was {results}"


async def _sent(
    effector: Effector, events: Sequence[Event], on_result: Callable[[DeliveryStatus], None]
) -> list[DeliveryStatus]:
    results: list[DeliveryStatus] = []

    async def stored(seq: int) -> None:
        """Return at once."""

    def report(status: DeliveryStatus) -> None:
        results.append(status)
        on_result(status)

    active = ActiveEffector(effector.name, effector, "act")
    outbox = EffectorOutbox(active, "run", 1, stored, report)
    for seq, event in enumerate(events, start=1):
        outbox.take(event, seq, 1, 0)
    delivering = asyncio.create_task(outbox.run())
    try:
        await asyncio.wait_for(outbox.drained(), _PATIENCE_S)
    finally:
        await end_all(delivering)
    return results
