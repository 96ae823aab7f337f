"""Rate limits of senders, of messages and of bytes."""

from torchloom_core.floor.clock import SECOND_NS

_KNOWN = 200_000
"""Maximum number of senders that are remembered; beyond it the table is cleared."""

_MANY = 10_000
"""So many senders are stored before those at rest are dropped, which changes nothing for them."""


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
