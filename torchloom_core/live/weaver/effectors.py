"""Everything that the Weaver acts on: the workers, the lighthouse, and what plugins bring."""

import asyncio
from collections.abc import Callable, Sequence

from torchloom_core.floor.persistent_table import Changes
from torchloom_core.interface.effector import ActiveEffector
from torchloom_core.live.transport import NatsBus
from torchloom_core.live.weaver.effector_outbox import EffectorOutbox
from torchloom_core.live.weaver.outbox import Outbox
from torchloom_core.wire.decisions import Output
from torchloom_core.wire.events import DeliveryStatus
from torchloom_core.wire.steering import Steer


class Effectors:
    """Passes each output to the effectors that it is for.

    Workers get commands once the state is stored, plugins' effectors events after that. Advice to
    the lighthouse waits for nothing: the kernel repeats it until the lighthouse has followed.
    """

    def __init__(
        self,
        bus: NatsBus,
        workers: Outbox,
        plugins: Sequence[ActiveEffector],
        run: str,
        epoch: int,
        report: Callable[[DeliveryStatus], None],
    ) -> None:
        self._bus = bus
        self._workers = workers
        self._plugins = [
            EffectorOutbox(active, run, epoch, workers.stored, report) for active in plugins
        ]

    def post(self, outputs: Sequence[Output], changes: Changes, seq: int, ts_ns: int) -> None:
        """Take the outputs of input ``seq`` of time ``ts_ns``, and the changes of the state."""
        self._workers.post(outputs, changes, seq)
        for number, output in enumerate(outputs, start=1):
            if isinstance(output, Steer):
                self._bus.steer(output)
            for plugin in self._plugins:
                plugin.take(output, seq, number, ts_ns)

    async def run(self) -> None:
        """Send until cancelled; raises as :meth:`Outbox.run` does."""
        delivering = [asyncio.create_task(plugin.run()) for plugin in self._plugins]
        try:
            await self._workers.run()
        finally:
            for task in delivering:
                task.cancel()
            await asyncio.gather(*delivering, return_exceptions=True)

    async def drained(self) -> None:
        """Wait until everything posted so far was sent, or given up."""
        drained = [plugin.drained() for plugin in self._plugins]
        await asyncio.gather(self._workers.drained(), *drained)
