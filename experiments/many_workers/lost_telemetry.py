"""What telemetry is missing in a record, and when it was lost."""

from collections import Counter

from experiments.many_workers.thin_worker import FIRST
from torchloom_core.wire.messages import Telemetry


class LostTelemetry:
    """Counts gaps in the numbers of each worker's batches, by the second of the run."""

    def __init__(self) -> None:
        self.taken = 0
        self._newest: dict[str, int] = {}
        self._lost_at: Counter[int] = Counter()

    def take(self, batch: Telemetry, second: float) -> None:
        """Take the next recorded batch."""
        self.taken += 1
        missing = batch.seq - self._newest.get(batch.worker, FIRST - 1) - 1
        self._newest[batch.worker] = batch.seq
        if missing > 0:
            self._lost_at[int(second)] += missing

    def describe(self, lost: int) -> str:
        """Say when so many batches were lost; without a later one of a worker, at the end."""
        known = [f"{count} at {second} s" for second, count in sorted(self._lost_at.items())]
        return ", ".join([*known, f"{lost - self._lost_at.total()} at the end"])
