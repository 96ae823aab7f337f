"""Every nanosecond of every GPU goes to one bucket, in whole numbers."""

from typing import get_args

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
        # Neither is settled: what they spent elsewhere since then is put right when they are.
        self._moved_gpu_ns += gpus * (ts_ns - self._since_ns)
        other._moved_gpu_ns -= gpus * (ts_ns - other._since_ns)
        self.gpus -= gpus
        other.gpus += gpus


class GpuTime:
    """The buckets, and the accounts that book to them.

    Attributes
    ----------
    crew : Account
        Groups that work together; its bucket follows the phase of the run.
    away, waiting : Account
        Groups of the run that come back, and those that lack nodes, while others go on.
    spare : Account
        Stand-bys and cold spares, those included that are repaired or inspected.
    """

    def __init__(self, start_ns: int) -> None:
        self.totals: dict[Bucket, int] = dict.fromkeys(BUCKETS, 0)
        self.crew = Account("useful", self.totals, start_ns)
        self.away = Account("restart", self.totals, start_ns)
        self.waiting = Account("waiting", self.totals, start_ns)
        self.spare = Account("spare", self.totals, start_ns)

    def lose(self, gpu_ns: int) -> None:
        """Take work back that was booked as useful, or will be."""
        self.totals["useful"] -= gpu_ns
        self.totals["lost"] += gpu_ns

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
        for account in (self.crew, self.away, self.waiting, self.spare):
            account.settle(ts_ns)
