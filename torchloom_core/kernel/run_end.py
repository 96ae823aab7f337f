"""Close the run once it is over as its people meant it; the kernel asks once a tick."""

from torchloom_core.fleet.launches import AT_WORK
from torchloom_core.kernel.actions.run import Run
from torchloom_core.kernel.execution import Execution
from torchloom_core.wire import notices
from torchloom_core.wire.endings import is_of_its_own
from torchloom_core.wire.events import Output
from torchloom_core.wire.messages import Drain, Exit

_CAUSE = "run_over"


class RunEnd:
    """Looks at how workers ended since the last tick, and whether anybody is left at work.

    A worker that is silent is not at work, and a standby never was.
    """

    def __init__(self, run: Run, execution: Execution) -> None:
        self._run = run
        self._execution = execution
        self._of_their_own = False
        self._otherwise = False

    def note(self, message: Exit) -> None:
        """Take note of how a worker ended."""
        if is_of_its_own(message.status, expected=message.expected):
            self._of_their_own |= message.step >= 0
        else:
            self._otherwise = True

    def close(self) -> list[Output]:
        """Where the last ones at work ended of their own since the last tick, leave nothing open.

        Standbys are sent home, and nothing is wanted of a knob any more: that was for one job.
        """
        meant = self._of_their_own and not self._otherwise
        self._of_their_own = self._otherwise = False
        if not meant or self._run.reachable(self._run.rows_in(*AT_WORK)):
            return []
        wishes = self._run.desired.snapshot()
        forgotten: list[Output] = []
        for knob in dict.fromkeys(wish.knob for wish in wishes):
            forgotten += self._run.desired.forget(knob, None)
        rows = [] if self._execution.is_passive else self._run.rows_in("standby")
        dismissed = [self._run.fleet.hello[row].worker for row in rows]
        outputs = self._run.issue(self._run.stage(rows, Drain()), _CAUSE)
        return [notices.of_run_end(dismissed, wishes), *forgotten, *outputs]
