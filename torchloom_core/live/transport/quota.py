"""Rate limits per sender, and turns for other work on the event loop; the bus uses them."""

import asyncio
import time

from torchloom_core.floor.clock import SECOND_NS

_KNOWN = 200_000
"""Maximum number of senders that are remembered; beyond it the table is cleared."""

_MANY = 10_000
"""So many senders are stored before those at rest are dropped, which changes nothing for them."""

_TURN_S = 0.005


class Quota:
    """Limits messages and bytes per second of each sender, with a burst after a rest.

    This is the generic cell rate algorithm: a sender's state is the time at which its quota is
    whole again. Each message and each byte moves it later, at most to ``rest_s`` from now.
    ``per_s`` holds for messages without bytes, ``bytes_per_s`` for bytes without messages.
    """

    def __init__(self, per_s: float, rest_s: float, bytes_per_s: float = float("inf")) -> None:
        self._message_ns = SECOND_NS / per_s
        self._byte_ns = SECOND_NS / bytes_per_s
        self._rest_ns = rest_s * SECOND_NS
        self._whole_ns: dict[str, float] = {}
        self._many = min(_KNOWN, _MANY)

    def takes(self, sender: str, now_ns: int, size: int = 0) -> bool:
        """Return whether a message of ``size`` bytes is within the quota, and count it if so."""
        whole_ns = self._whole_ns.get(sender)
        if whole_ns is None:
            if len(self._whole_ns) >= self._many:
                self._drop_resting(now_ns)
            whole_ns = now_ns
        elif whole_ns < now_ns:
            whole_ns = now_ns
        whole_ns += self._message_ns + size * self._byte_ns
        if whole_ns - now_ns > self._rest_ns:
            return False
        self._whole_ns[sender] = whole_ns
        return True

    def _drop_resting(self, now_ns: int) -> None:
        busy = {sender: ns for sender, ns in self._whole_ns.items() if ns > now_ns}
        self._whole_ns = busy if len(busy) < _KNOWN else {}
        self._many = min(_KNOWN, max(_MANY, 2 * len(self._whole_ns)))


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
