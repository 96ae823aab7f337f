"""Every nanosecond of every GPU goes to one bucket, in whole numbers."""

from typing import NamedTuple, get_args

from torchloom_core.simulate.scenario import Bucket

BUCKETS: tuple[Bucket, ...] = get_args(Bucket)


class Account:
    """GPUs that are in the same situation, whose time goes to one bucket at a time."""

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
        """Move GPUs to another account: none is ever made or lost."""
        self._take(-gpus, ts_ns)
        other._take(gpus, ts_ns)

    def _take(self, gpus: int, ts_ns: int) -> None:
        # Not settled: what they spent elsewhere since then is put right when it is.
        self._moved_gpu_ns -= gpus * (ts_ns - self._since_ns)
        self.gpus += gpus


class WorkingGroups(Account):
    """Groups that work together, which may be more than the job is planned for.

    Attributes
    ----------
    planned : int
        GPUs that the job is planned for.
    surplus_gpu_ns : int
        Useful time of GPUs beyond those.
    """

    __slots__ = ("_counted_ns", "planned", "surplus_gpu_ns")

    def __init__(self, bucket: Bucket, totals: dict[Bucket, int], start_ns: int) -> None:
        super().__init__(bucket, totals, start_ns)
        self.planned = self.surplus_gpu_ns = 0
        self._counted_ns = start_ns

    @property
    def surplus(self) -> int:
        """GPUs beyond those that the job is planned for."""
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
    """Useful GPU-nanoseconds that are safe, and how much of them was beyond the plan."""

    useful: int
    surplus: int


class GpuTime:
    """The buckets, and the accounts that book to them.

    Attributes
    ----------
    active : WorkingGroups
        Groups that work together; its bucket follows the phase of the run.
    away, waiting : Account
        Groups of the run that come back, and those that lack nodes, while others go on.
    spare : Account
        Standbys and cold spares, those included that are repaired or inspected.
    """

    def __init__(self, start_ns: int) -> None:
        self.totals: dict[Bucket, int] = dict.fromkeys(BUCKETS, 0)
        self.active = WorkingGroups("useful", self.totals, start_ns)
        self.away = Account("restart", self.totals, start_ns)
        self.waiting = Account("waiting", self.totals, start_ns)
        self.spare = Account("spare", self.totals, start_ns)

    def lose(self, gpu_ns: int) -> None:
        """Take work back that was booked as useful, or will be."""
        self.totals["useful"] -= gpu_ns
        self.totals["lost"] += gpu_ns

    def spoil(self, into_ns: int) -> None:
        """Take back what the active did in its present step."""
        self.lose(into_ns * self.active.gpus)
        self.active.surplus_gpu_ns -= into_ns * self.active.surplus

    def kept(self, into_ns: int) -> UsefulTime:
        """Return what is useful, all being settled, less what the active did in its present step."""
        active = self.active
        return UsefulTime(
            self.totals["useful"] - into_ns * active.gpus,
            active.surplus_gpu_ns - into_ns * active.surplus,
        )

    def fall_back(self, kept: UsefulTime) -> None:
        """Take back what is useful beyond what was kept, all being settled."""
        self.lose(self.totals["useful"] - kept.useful)
        self.active.surplus_gpu_ns = kept.surplus

    def saved(self, gpu_ns: int) -> None:
        """Book a checkpoint that was booked as useful, or will be."""
        self.totals["useful"] -= gpu_ns
        self.totals["checkpoint"] += gpu_ns

    def repair(self, gpu_ns: int) -> None:
        """Book a repair or an inspection that was booked as spare, or will be."""
        self.totals["spare"] -= gpu_ns
        self.totals["repair"] += gpu_ns

    def settle(self, ts_ns: int) -> None:
        """Book all accounts up to ``ts_ns``."""
        for account in (self.active, self.away, self.waiting, self.spare):
            account.settle(ts_ns)
