"""What a rendezvous knows of a worker, and what it sends to it."""

from dataclasses import dataclass
from typing import NamedTuple

from torchloom_core.wire.generations import FromRendezvous, Join, Stopped


class Send(NamedTuple):
    """A message to a worker; None closes its connection."""

    worker: str
    message: FromRendezvous | None


@dataclass(slots=True)
class KnownWorker:
    """A connected worker.

    ``generation``: the one that it has a part in, 0 for none. ``stopped``: its report, once it has
    left the present generation. ``spare``: what it keeps without a part, until a step is committed.
    ``committed``: its last step, as of its last heartbeat.
    ``has_finished``: whether it has done all steps.
    """

    join: Join
    seen_s: float
    generation: int = 0
    stopped: Stopped | None = None
    spare: Stopped | None = None
    committed: int = -1
    has_finished: bool = False
