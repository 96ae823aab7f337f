"""How much each sender may say, and turns for those who say little; the bus asks."""

import asyncio
import time

from torchloom_core.clock import SECOND_NS

_KNOWN = 200_000
"""Senders that are remembered; of more all are forgotten, and begin anew."""

_TURN_S = 0.005


class Quota:
    """So many messages, or bytes, a second from each sender, and more at once after a rest.

    What a sender has said is a time after which its quota is whole again (the generic cell rate
    algorithm): every message and every byte puts it off, by ``rest_s`` beyond now at the most.

    Parameters
    ----------
    per_s, bytes_per_s : float
        Messages a second without bytes, and bytes a second without messages.
    rest_s : float
        How many seconds' worth may come at once.
    """

    def __init__(self, per_s: float, rest_s: float, bytes_per_s: float = float("inf")) -> None:
        self._message_ns = SECOND_NS / per_s
        self._byte_ns = SECOND_NS / bytes_per_s
        self._rest_ns = rest_s * SECOND_NS
        self._whole_ns: dict[str, float] = {}

    def takes(self, sender: str, now_ns: int, size: int = 0) -> bool:
        """Say whether a message of ``size`` bytes is within it; one that is not costs nothing."""
        whole_ns = self._whole_ns.get(sender)
        if whole_ns is None:
            if len(self._whole_ns) >= _KNOWN:
                self._whole_ns.clear()
            whole_ns = now_ns
        elif whole_ns < now_ns:
            whole_ns = now_ns
        whole_ns += self._message_ns + size * self._byte_ns
        if whole_ns - now_ns > self._rest_ns:
            return False
        self._whole_ns[sender] = whole_ns
        return True


class Turns:
    """Lets others have their turn every few milliseconds of work that waits for nothing.

    A callback of nats-py that never waits is called for all that has come in before anything else
    on the loop, the kill switch say, is looked at.
    """

    def __init__(self) -> None:
        self._due_s = 0.0

    def are_due(self) -> bool:
        """Say whether it is time to :meth:`give` them."""
        return time.monotonic() >= self._due_s

    async def give(self) -> None:
        """Let the others run if it is time."""
        if self.are_due():
            await asyncio.sleep(0)
            self._due_s = time.monotonic() + _TURN_S
