"""Turns for other work on the event loop; the bus uses them."""

import asyncio
import time

_TURN_S = 0.005


class Turns:
    """Yields to the event loop every few milliseconds of work that never awaits.

    nats-py calls a callback that never awaits for all pending messages before anything else on
    the loop runs, such as the kill switch.
    """

    def __init__(self) -> None:
        self._due_s = 0.0

    def are_due(self) -> bool:
        """Return whether it is time to :meth:`give` one."""
        return time.monotonic() >= self._due_s

    async def give(self) -> None:
        """Yield to the event loop if it is time."""
        if self.are_due():
            await asyncio.sleep(0)
            self._due_s = time.monotonic() + _TURN_S
