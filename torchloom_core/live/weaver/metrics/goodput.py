"""The run's goodput so far, by the account that the dashboard keeps: one definition for both."""

import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Ints
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.live.fleet.time_accounting import KINDS, STANDBY, USEFUL, TimeAccount
from torchloom_core.wire.endings import INTENDED
from torchloom_core.wire.messages import Hello

_STATES = (
    "standby",
    "joining",
    "training",
    "paused",
    "draining",
    "left",
    "ended",
    "unreachable",
    "failed",
)
_CODE = {name: code for code, name in enumerate(_STATES)} | {"gone": _STATES.index("failed")}
_OVER = tuple(_CODE[name] for name in ("left", "ended", "failed"))


class LiveGoodput:
    """The rank-seconds of a live run by kind; updated once a second."""

    def __init__(self, fleet: FleetState) -> None:
        self._fleet = fleet
        self._account = TimeAccount(_STATES)
        self._launch: dict[str, str] = {}
        self._jobs: dict[str, int] = {}

    def take(self, hello: Hello) -> None:
        """Count the jobs of a worker: a new job counts its steps anew."""
        if hello.launch != self._launch.get(hello.worker) and hello.resumes is not None:
            self._launch[hello.worker] = hello.launch
            self._jobs[hello.worker] = self._jobs.get(hello.worker, 0) + (not hello.resumes)

    def update(self, now_ns: int) -> None:
        """Account for the time since the last update."""
        fleet = self._fleet
        count = len(fleet.hello)
        if len(self._launch) > 2 * count:  # others have taken the rows of workers long gone
            self._launch = {w: own for w, own in self._launch.items() if w in fleet.row_of}
            self._jobs = {w: own for w, own in self._jobs.items() if w in fleet.row_of}
        states = np.fromiter((_CODE.get(s, 0) for s in fleet.state), np.uint8, count)
        for row in np.flatnonzero(states == _CODE["gone"]):
            if fleet.ending[row] in INTENDED:
                states[row] = _CODE["ended"]
        quiet = fleet.times.seen_ns[:count] < now_ns - fleet.times.stale_ns
        states[quiet & ~np.isin(states, _OVER)] = _CODE["unreachable"]
        jobs: Ints = np.fromiter(
            (self._jobs.get(hello.worker, 0) for hello in fleet.hello), np.int64, count
        )
        steps = fleet.times.step[:count].copy()
        self._account.update(now_ns / SECOND_NS, states, steps, jobs)

    @property
    def rank_seconds(self) -> dict[str, float]:
        """Rank-seconds by kind since the Weaver started; standbys are apart."""
        return {kind: self._account.shares.get(kind, 0.0) for kind in KINDS}

    @property
    def ratio(self) -> float:
        """The share of useful steps in the time of all ranks but standbys; NaN before any."""
        seconds = self.rank_seconds
        whole_s = sum(value for kind, value in seconds.items() if kind != STANDBY)
        return seconds[USEFUL] / whole_s if whole_s > 0 else float("nan")

    @property
    def run_step(self) -> int:
        """The median of the last finished steps of the working ranks, -1 before the first."""
        return self._account.run_step
