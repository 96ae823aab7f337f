"""GPU time accounting: every nanosecond of every GPU goes to one bucket, in integers."""

from typing import NamedTuple, get_args

from torchloom_core.lab.simulate.scenario import Bucket

BUCKETS: tuple[Bucket, ...] = get_args(Bucket)


class Account:
    """A set of GPUs whose time goes to one bucket at a time."""

    __slots__ = ("_moved_gpu_ns", "_since_ns", "_totals", "bucket", "gpus")

    def __init__(self, bucket: Bucket, totals: dict[Bucket, int], start_ns: int) -> None:
        self.bucket: Bucket = bucket
        self.gpus = 0
        self._totals = totals
        self._since_ns = start_ns
        self._moved_gpu_ns = 0

    def settle(self, ts_ns: int) -> None:
        """Book the time up to ``ts_ns``."""
        self._totals[self.bucket] += self.gpus * (ts_ns - self._since_ns) + self._moved_gpu_ns
        self._since_ns = ts_ns
        self._moved_gpu_ns = 0

    def switch(self, bucket: Bucket, ts_ns: int) -> None:
        """Book to another bucket from ``ts_ns`` on."""
        self.settle(ts_ns)
        self.bucket = bucket

    def give(self, gpus: int, other: "Account", ts_ns: int) -> None:
        """Move GPUs to another account; their total is constant."""
        self._take(-gpus, ts_ns)
        other._take(gpus, ts_ns)

    def _take(self, gpus: int, ts_ns: int) -> None:
        # Not settled here: the next settle() corrects for their time in the other account.
        self._moved_gpu_ns -= gpus * (ts_ns - self._since_ns)
        self.gpus += gpus


class WorkingGroups(Account):
    """The account of the groups that train, which may have more GPUs than ``planned``.

    ``surplus_gpu_ns`` is the useful time of those beyond the plan.
    """

    __slots__ = ("_counted_ns", "planned", "surplus_gpu_ns")

    def __init__(self, bucket: Bucket, totals: dict[Bucket, int], start_ns: int) -> None:
        super().__init__(bucket, totals, start_ns)
        self.planned = self.surplus_gpu_ns = 0
        self._counted_ns = start_ns

    @property
    def surplus(self) -> int:
        """GPUs beyond the plan."""
        return max(0, self.gpus - self.planned)

    def settle(self, ts_ns: int) -> None:
        """Book the time up to ``ts_ns``."""
        self._count(ts_ns)
        super().settle(ts_ns)

    def _take(self, gpus: int, ts_ns: int) -> None:
        self._count(ts_ns)
        super()._take(gpus, ts_ns)

    def _count(self, ts_ns: int) -> None:
        if self.bucket == "useful":
            self.surplus_gpu_ns += self.surplus * (ts_ns - self._counted_ns)
        self._counted_ns = ts_ns


class UsefulTime(NamedTuple):
    """Useful GPU-nanoseconds at a checkpoint, and the part beyond the plan."""

    useful: int
    surplus: int


class GpuTime:
    """The buckets, and the accounts whose time goes to them.

    The bucket of ``active``, the groups that train, follows the phase of the run. ``away`` are
    groups of the run that rejoin, and ``waiting`` those that lack nodes, while others go on.
    ``spare`` are standbys and cold spares, including nodes under repair or inspection.
    """

    def __init__(self, start_ns: int) -> None:
        self.totals: dict[Bucket, int] = dict.fromkeys(BUCKETS, 0)
        self.active = WorkingGroups("useful", self.totals, start_ns)
        self.away = Account("restart", self.totals, start_ns)
        self.waiting = Account("waiting", self.totals, start_ns)
        self.spare = Account("spare", self.totals, start_ns)

    def rebook(self, gpu_ns: int, out: Bucket, into: Bucket) -> None:
        """Move time to another bucket; it may be booked to the first one only later."""
        self.totals[out] -= gpu_ns
        self.totals[into] += gpu_ns

    def spoil(self, into_ns: int) -> None:
        """Rebook the active groups' time in the current step as lost."""
        self.rebook(into_ns * self.active.gpus, "useful", "lost")
        self.active.surplus_gpu_ns -= into_ns * self.active.surplus

    def useful_before_step(self, into_ns: int) -> UsefulTime:
        """Return the useful time without the current step; settle all accounts first."""
        active = self.active
        return UsefulTime(
            self.totals["useful"] - into_ns * active.gpus,
            active.surplus_gpu_ns - into_ns * active.surplus,
        )

    def roll_back(self, saved: UsefulTime) -> None:
        """Rebook useful time beyond a checkpoint as lost; settle all accounts first."""
        self.rebook(self.totals["useful"] - saved.useful, "useful", "lost")
        self.active.surplus_gpu_ns = saved.surplus

    def settle(self, ts_ns: int) -> None:
        """Book all accounts up to ``ts_ns``."""
        for account in (self.active, self.away, self.waiting, self.spare):
            account.settle(ts_ns)
