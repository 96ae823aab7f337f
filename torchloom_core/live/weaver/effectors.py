"""Everything that the Weaver acts on: workers, lighthouse, rendezvous, and what plugins bring.

A plugin's effector gets its events in order, apart from all other work of the Weaver.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec

from torchloom_core.floor.errors import PluginError
from torchloom_core.floor.first_done import end_all
from torchloom_core.floor.persistent_table import Changes
from torchloom_core.floor.plain_text import plain_line
from torchloom_core.interface.effector import ActiveEffector, Delivery
from torchloom_core.interface.foreign import one_line
from torchloom_core.live.trajectory.summaries import summarise
from torchloom_core.live.transport import NatsBus
from torchloom_core.live.weaver.outbox import Outbox
from torchloom_core.live.weaver.plugin_threads import in_own_thread
from torchloom_core.live.weaver.rendezvous_links import RendezvousLinks
from torchloom_core.wire.decisions import Output
from torchloom_core.wire.events import DeliveryResult, DeliveryStatus
from torchloom_core.wire.programs import ChangeWanted
from torchloom_core.wire.steering import Steer

_MOST_WAITING = 1000
_ATTEMPT_S = 10.0
_THREAD_GRACE_S = 1.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_PATIENCE_S = 3600.0


class Effectors:
    """Passes each output to the effectors that it is for.

    Workers get commands once the state is stored, plugins' effectors events after that. Advice to
    the lighthouse waits for nothing: the kernel repeats it until the lighthouse has followed.
    """

    def __init__(
        self,
        bus: NatsBus,
        workers: Outbox,
        rendezvous: RendezvousLinks,
        plugins: Sequence[ActiveEffector],
        run: str,
        epoch: int,
        report: Callable[[DeliveryStatus], None],
    ) -> None:
        self._bus = bus
        self._workers = workers
        self._rendezvous = rendezvous
        self._plugins = [
            EffectorOutbox(active, run, epoch, workers.stored, report) for active in plugins
        ]

    def post(self, outputs: Sequence[Output], changes: Changes, seq: int, ts_ns: int) -> None:
        """Take the outputs of input ``seq`` of time ``ts_ns``, and the changes of the state."""
        self._workers.post(outputs, changes, seq)
        for number, output in enumerate(outputs, start=1):
            if isinstance(output, Steer):
                self._bus.steer(output)
            elif isinstance(output, ChangeWanted):
                self._rendezvous.send(output)
            for plugin in self._plugins:
                plugin.take(output, seq, number, ts_ns)

    def waiting(self) -> dict[str, int]:
        """Return how many entries wait, by queue."""
        return self._workers.waiting() | {p.name: p.waiting for p in self._plugins}

    async def run(self) -> None:
        """Send until cancelled; raises as :meth:`Outbox.run` does."""
        delivering = [asyncio.create_task(plugin.run()) for plugin in self._plugins]
        delivering.append(asyncio.create_task(self._rendezvous.run()))
        try:
            await self._workers.run()
        finally:
            await end_all(*delivering)

    async def drained(self) -> None:
        """Wait until everything posted so far was sent, or given up."""
        drained = [plugin.drained() for plugin in self._plugins]
        await asyncio.gather(self._workers.drained(), *drained)


class _Waiting(NamedTuple):
    seq: int
    taken_s: float
    delivery: Delivery


class EffectorOutbox:
    """The events for one effector, each delivered once the state up to its input is ``stored``."""

    def __init__(
        self,
        active: ActiveEffector,
        run: str,
        epoch: int,
        stored: Callable[[int], Awaitable[None]],
        report: Callable[[DeliveryStatus], None],
    ) -> None:
        self.name, self._effector, self._mode = active
        self._subscriptions = tuple(self._effector.subscriptions)
        self._run = run
        self._epoch = epoch
        self._stored = stored
        self._report_status = report
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(_MOST_WAITING)
        self._busy = False

    def take(self, output: Output, seq: int, number: int, ts_ns: int) -> None:
        """Queue output ``number`` of input ``seq`` if subscribed to; drop the oldest if full."""
        if not any(subscription.matches(output) for subscription in self._subscriptions):
            return
        if self._queue.full():
            self._drop(f"more than {_MOST_WAITING} events wait")
        delivery = Delivery(
            id=f"e{self._epoch}.{seq}.{number}",
            run=self._run,
            ts_ns=ts_ns,
            event=output,  # type: ignore[arg-type]
        )
        self._queue.put_nowait(_Waiting(seq, asyncio.get_running_loop().time(), delivery))

    async def run(self) -> None:
        """Deliver until cancelled; report what then still waits as dropped."""
        try:
            while True:
                waiting = await self._queue.get()
                try:
                    await self._deliver(waiting)
                except asyncio.CancelledError:
                    self._report(waiting.delivery, "dropped", "the Weaver ended")
                    raise
                finally:
                    self._queue.task_done()
        finally:
            while not self._queue.empty():
                self._drop("the Weaver ended")

    @property
    def waiting(self) -> int:
        """How many events wait."""
        return self._queue.qsize()

    async def drained(self) -> None:
        """Wait until each event taken so far has its result."""
        await self._queue.join()

    async def _deliver(self, waiting: _Waiting) -> None:
        await self._stored(waiting.seq)
        delivery, loop = waiting.delivery, asyncio.get_running_loop()
        if self._mode == "dry_run":
            kind = str(delivery.event.__struct_config__.tag)
            text = summarise(kind, msgspec.to_builtins(delivery.event))
            return self._report(delivery, "dry_run", f"{kind}: {text}")
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return self._report(delivery, "delivered", await self._attempt(delivery))
            except PluginError as error:
                return self._report(delivery, "given_up", one_line(error))
            except Exception as error:  # noqa: BLE001 - foreign code
                why = one_line(error)
            if loop.time() + pause_s > waiting.taken_s + _PATIENCE_S:
                return self._report(delivery, "given_up", why)
            if pause_s == _FIRST_PAUSE_S:
                self._report(delivery, "retrying", why)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _attempt(self, delivery: Delivery) -> str:
        if self._busy:
            raise TimeoutError("an earlier attempt has not returned")

        def call() -> str | None:
            try:
                return asyncio.run(asyncio.wait_for(self._effector.send(delivery), _ATTEMPT_S))
            except Exception:
                raise
            except BaseException as error:  # sys.exit, or a cancellation of its own
                raise RuntimeError(one_line(error)) from error
            finally:
                self._busy = False

        self._busy = True
        try:
            done = await in_own_thread(f"effector-{self.name}", call, _ATTEMPT_S + _THREAD_GRACE_S)
        except TimeoutError as error:
            raise TimeoutError(str(error) or f"took more than {_ATTEMPT_S:g} s") from None
        return done if isinstance(done, str) else ""

    def _drop(self, why: str) -> None:
        self._report(self._queue.get_nowait().delivery, "dropped", why)
        self._queue.task_done()

    def _report(self, delivery: Delivery, result: DeliveryResult, detail: str) -> None:
        text = plain_line(detail)
        status = DeliveryStatus(
            effector=self.name, delivery=delivery.id, result=result, detail=text
        )
        self._report_status(status)
