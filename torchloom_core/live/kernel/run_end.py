"""Close the run once its last workers have ended normally; the kernel checks every tick."""

from torchloom_core.live.fleet.launches import AT_WORK
from torchloom_core.live.kernel.actions.run import Run
from torchloom_core.wire import notices
from torchloom_core.wire.decisions import Output
from torchloom_core.wire.endings import is_own_end
from torchloom_core.wire.messages import Exit
from torchloom_core.wire.operations import Drain

_CAUSE = "run_over"


class RunEnd:
    """Tracks how workers ended since the last tick; closes the run when none is left training.

    Unreachable workers and standbys do not count.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._of_their_own = False
        self._otherwise = False

    def note(self, message: Exit) -> None:
        """Record how a worker ended."""
        if is_own_end(message.status, expected=message.expected):
            self._of_their_own |= message.step >= 0
        else:
            self._otherwise = True

    def close(self) -> list[Output]:
        """Close the run if the last training workers ended normally since the last tick.

        Standbys are drained, and the desired values of the job are dropped.
        """
        is_over = self._of_their_own and not self._otherwise
        self._of_their_own = self._otherwise = False
        if (
            not is_over
            or self._run.suspensions.table
            or self._run.reachable(self._run.rows_in(*AT_WORK))
        ):
            return []
        desired = self._run.desired.snapshot()
        forgotten: list[Output] = []
        for knob in dict.fromkeys(one.knob for one in desired):
            forgotten += self._run.desired.forget(knob, None)
        rows = [] if self._run.switch.is_passive else self._run.rows_in("standby")
        dismissed = [self._run.fleet.hello[row].worker for row in rows]
        outputs = self._run.issue(self._run.stage(rows, Drain()), _CAUSE)
        return [notices.of_run_end(dismissed, desired), *forgotten, *outputs]
