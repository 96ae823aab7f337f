"""How much each sender may say, and turns for those who say little; the bus asks."""

import asyncio
from collections.abc import Callable

from torchloom_core.clock import SECOND_NS

_KNOWN = 200_000
"""Senders that are remembered; of more all are forgotten, and begin anew."""

_TURN_S = 0.005


class Quota:
    """So many messages, and bytes, a second from each sender, and more at once after a rest.

    Parameters
    ----------
    per_s, at_once : float
        Messages a second, and how many may come at once.
    bytes_per_s, bytes_at_once : float
        The same of their bytes.
    now_ns : callable
        Clock.
    """

    def __init__(
        self,
        per_s: float,
        at_once: float,
        now_ns: Callable[[], int],
        *,
        bytes_per_s: float = float("inf"),
        bytes_at_once: float = float("inf"),
    ) -> None:
        self._per_s = per_s
        self._at_once = at_once
        self._bytes_per_s = bytes_per_s
        self._bytes_at_once = bytes_at_once
        self._now_ns = now_ns
        self._left: dict[str, tuple[int, float, float]] = {}

    def takes(self, sender: str, size: int = 0) -> bool:
        """Say whether a message of ``size`` bytes is within it; one that is not costs nothing."""
        now_ns = self._now_ns()
        then_ns, count, room = self._left.get(sender, (now_ns, self._at_once, self._bytes_at_once))
        passed_s = max(0, now_ns - then_ns) / SECOND_NS
        count = min(self._at_once, count + self._per_s * passed_s)
        room = min(self._bytes_at_once, room + self._bytes_per_s * passed_s)
        taken = count >= 1 and room >= size
        if len(self._left) >= _KNOWN and sender not in self._left:
            self._left.clear()
        self._left[sender] = (now_ns, count - 1, room - size) if taken else (now_ns, count, room)
        return taken


class Turns:
    """Lets others have their turn every few milliseconds of work that waits for nothing.

    A callback of nats-py that never waits is called for all that has come in before anything else
    on the loop, the kill switch say, is looked at.
    """

    def __init__(self) -> None:
        self._due_s = 0.0

    async def give(self) -> None:
        """Let the others run if it is time."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._due_s:
            await asyncio.sleep(0)
            self._due_s = loop.time() + _TURN_S
