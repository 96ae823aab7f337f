"""The options of a rendezvous, and what it leaves to its next process."""

import msgspec

from torchloom_core.assignments.price import RATES, Rates
from torchloom_core.wire.assignment import Assignment
from torchloom_core.wire.generations import Join


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a rendezvous.

    Attributes
    ----------
    workers : int
        How many it waits for before the first generation.
    standbys : int
        How many of them stand by.
    heartbeat_timeout_s : float
        After which a silent worker counts as ended.
    stop_timeout_s : float
        How long a worker may take to leave a generation that is over.
    """

    workers: int
    standbys: int = 0
    heartbeat_timeout_s: float = 3.0
    stop_timeout_s: float = 30.0
    rates: Rates = RATES


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What a rendezvous leaves to its next process.

    ``join`` describes the program; ``stages`` are those of a replica with all its workers;
    ``left_out`` are standbys that take no part.
    """

    assignment: Assignment
    join: Join
    stages: int
    left_out: tuple[str, ...] = ()
