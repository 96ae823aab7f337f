"""The load of the run's network, and the delay of the steps by another transfer.

For policies whose actions send a model state or a checkpoint over the network of the allreduce;
public, like :mod:`torchloom_core.plugin`.
"""

import math
from collections import deque

import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.needs import Need
from torchloom_core.interface.view import FleetView

STATE_BYTES = "state_bytes"
"""The metric of the state that a worker sends to one that joins, bytes."""

_NOW_S = 60.0
_MEMORY_S = 3600.0
_IDLE_SHARE = 0.1
"""Below this share too little is sent to estimate the bandwidth, and a transfer costs little."""
_MOST_BYTES = 1e18

TRAFFIC_NEEDS = (
    Need("step_time_s", window_s=_NOW_S, optional=True),
    Need("wire_s", window_s=_NOW_S, optional=True),
    Need("sent_bytes", window_s=_NOW_S, optional=True),
    Need("round_s", window_s=_NOW_S, optional=True),
    Need(STATE_BYTES, optional=True),
)
"""The metrics that :class:`Traffic` reads."""


class Traffic:
    """An estimate of the network load from the allreduces of the training workers.

    The network is busy for ``wire_s`` of each step, or of each round of LocalSGD and DiLoCo. The
    minimum over the workers is used, since larger values include waiting for a slower rank; the
    bytes that this worker sent in that time give the bandwidth. Both are medians of the last
    minute. No probe is sent: without training workers, or without these metrics, all numbers are
    NaN and prices 0.

    A transfer needs the network for ``bytes / bandwidth`` seconds. If the network is busy for a
    share ``s`` of the time, and both get half of it when they overlap, each step takes ``2 s``
    instead of ``s`` for its own bytes. So each second of network time that the transfer needs
    delays the run by ``s`` seconds, for which all its GPUs wait. A lower rate does not reduce the
    total delay; fewer bytes or a time with less traffic do.

    All bytes are those of one worker on its own link; the workers of a group transfer at the same
    time.

    Attributes
    ----------
    busy_share : float
        Share of a step in which the network was busy, 0 to 1; NaN if unknown.
    bytes_per_s : float
        Bandwidth of a worker while the network is busy; NaN if unknown or idle.
    state_bytes : float
        Size of the state that a joining worker receives: as reported, else ``costs.state_bytes``;
        NaN if unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.plugin import Traffic
    >>> from torchloom_core.testing import view_of
    >>> minute = np.ones((2, 60))
    >>> step = {"step_time_s": minute, "wire_s": minute * [[0.9], [0.8]]}
    >>> sent = {"sent_bytes": 1e7 * minute, "state_bytes": [1.2e9, np.nan]}
    >>> rounds = {"round_s": np.nan * minute}
    >>> traffic = Traffic()
    >>> traffic.look(view_of(step | sent | rounds))
    >>> traffic.busy_share, traffic.bytes_per_s
    (0.8, 12500000.0)
    >>> traffic.transfer_s(1.2e9), round(traffic.transfer_gpu_s(1.2e9), 1)
    (96.0, 153.6)
    >>> traffic.in_words("the state", traffic.state_bytes)
    'the state (1.2 GB) takes 96 s of a network that is 80% busy: 154 GPU-s'
    """

    def __init__(self) -> None:
        self._past: deque[tuple[int, float]] = deque()
        self._gpus = 0.0
        self.busy_share = self.bytes_per_s = self.state_bytes = math.nan

    def look(self, view: FleetView) -> None:
        """Update from the view of a tick; call it at every tick to have the last hour."""
        in_run = view.is_in("training", "paused")
        self._gpus = view.costs.gpus_per_worker * int(np.count_nonzero(in_run))
        self.busy_share, self.bytes_per_s = _wire(view)
        given = view.latest(STATE_BYTES)[in_run]
        given = given[(given > 0) & (given <= _MOST_BYTES)]
        if len(given):
            self.state_bytes = float(given.max())
        elif math.isnan(self.state_bytes) and view.costs.state_bytes > 0:
            self.state_bytes = view.costs.state_bytes
        while self._past and view.now_ns - self._past[0][0] >= _MEMORY_S * SECOND_NS:
            self._past.popleft()
        if not math.isnan(self.busy_share):
            self._past.append((view.now_ns, self._delay_s_per_byte))

    def transfer_s(self, size_bytes: float) -> float:
        """Return how long a transfer needs the whole network, seconds; NaN if unknown."""
        return size_bytes / self.bytes_per_s

    def transfer_gpu_s(self, size_bytes: float) -> float:
        """Return the price of a transfer now, GPU-seconds; 0 if unknown."""
        return self.delay_s(size_bytes) * self._gpus

    def usual_gpu_s(self, size_bytes: float) -> float:
        """Return its price at the median load of the last hour, GPU-seconds; 0 if unknown."""
        return self.usual_delay_s(size_bytes) * self._gpus

    def delay_s(self, size_bytes: float) -> float:
        """Return how long a transfer delays the run now, seconds; 0 if unknown."""
        return _product(size_bytes, self._delay_s_per_byte)

    def usual_delay_s(self, size_bytes: float) -> float:
        """Return its delay at the median load of the last hour, seconds; 0 if unknown."""
        past = [delay for _, delay in self._past]
        return _product(size_bytes, float(np.median(past))) if past else 0.0

    def in_words(self, what: str, size_bytes: float) -> str:
        """Return the time and price to send ``what`` now, in words."""
        if math.isnan(size_bytes):
            return f"{what} has an unknown size, so its transfer is priced 0"
        what = f"{what} ({_in_words(size_bytes)})"
        if math.isnan(self.busy_share):
            return f"{what} uses a network with unknown load, priced 0"
        if math.isnan(self.bytes_per_s):
            return f"{what} uses a network that is {self.busy_share:.0%} busy, priced 0"
        return (
            f"{what} takes {self.transfer_s(size_bytes):.0f} s of a network that is "
            f"{self.busy_share:.0%} busy: {self.transfer_gpu_s(size_bytes):.0f} GPU-s"
        )

    @property
    def _delay_s_per_byte(self) -> float:
        delay_s = self.busy_share / self.bytes_per_s
        return delay_s if math.isfinite(delay_s) else 0.0


def _wire(view: FleetView) -> tuple[float, float]:
    """Return the share of a step in which the network is busy, and its bandwidth in bytes/s."""
    training = view.is_in("training")
    step_s, wire_s, sent, round_s = (
        view.window(need.metric, need.window_s) for need in TRAFFIC_NEEDS[:4]
    )
    if np.isnan(wire_s).all():  # thousands of workers, and none reports it
        return math.nan, math.nan
    step_s, wire_s, sent, round_s = (one[training] for one in (step_s, wire_s, sent, round_s))
    step_s = np.where(np.isnan(round_s), step_s, round_s)
    valid = (step_s > 0) & (wire_s >= 0) & np.isfinite(step_s) & np.isfinite(wire_s)
    columns = np.flatnonzero(valid.any(axis=0))
    if not len(columns):
        return math.nan, math.nan
    wire_s = np.where(valid, wire_s, np.inf)
    rows = wire_s[:, columns].argmin(axis=0)
    busy_s = wire_s[rows, columns]
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        busy_share = float(np.median(np.minimum(busy_s / step_s[rows, columns], 1.0)))
        bytes_per_s = sent[rows, columns] / busy_s
    bytes_per_s = bytes_per_s[(bytes_per_s >= 1.0) & (bytes_per_s <= _MOST_BYTES)]
    if busy_share < _IDLE_SHARE or not len(bytes_per_s):
        return busy_share, math.nan
    return busy_share, float(np.median(bytes_per_s))


def _product(size_bytes: float, delay_s_per_byte: float) -> float:
    return size_bytes * delay_s_per_byte if 0 <= size_bytes <= _MOST_BYTES else 0.0


def _in_words(size_bytes: float) -> str:
    for unit, many in ("TB", 1e12), ("GB", 1e9), ("MB", 1e6):
        if size_bytes >= many:
            return f"{size_bytes / many:.3g} {unit}"
    return f"{size_bytes / 1e3:.3g} kB"
