"""Close the run once it is over as its people meant it; the kernel asks once a tick."""

from torchloom_core.clock import SECOND_NS
from torchloom_core.config.schema import Config
from torchloom_core.kernel.actions.run import Run
from torchloom_core.kernel.execution import Execution
from torchloom_core.wire import notices
from torchloom_core.wire.endings import is_of_its_own
from torchloom_core.wire.events import Output
from torchloom_core.wire.messages import Drain, Exit

_AT_WORK = frozenset({"joining", "training", "paused", "draining"})
_CAUSE = "run_over"


class RunEnd:
    """Looks at how workers ended since the last tick, and whether anybody is left at work.

    A worker that is silent is not at work, and a stand-by never was.
    """

    def __init__(self, run: Run, execution: Execution, config: Config) -> None:
        self._run = run
        self._fleet = run.fleet
        self._execution = execution
        self._dry_run = config.arbiter.dry_run
        self._stale_ns = round(config.weaver.stale_after_s * SECOND_NS)
        self._of_their_own = False
        self._otherwise = False

    def note(self, message: Exit) -> None:
        """Take note of how a worker ended."""
        if is_of_its_own(message.status, expected=message.expected):
            self._of_their_own |= message.step >= 0
        else:
            self._otherwise = True

    def close(self, now_ns: int) -> list[Output]:
        """Where the last ones at work ended of their own since the last tick, leave nothing open.

        Stand-bys are sent home, and nothing is wanted of a knob any more: that was for one job.
        """
        meant = self._of_their_own and not self._otherwise
        self._of_their_own = self._otherwise = False
        if not meant or self._anybody_at_work(now_ns):
            return []
        wishes = self._run.desired.snapshot()
        forgotten: list[Output] = []
        for knob in dict.fromkeys(wish.knob for wish in wishes):
            forgotten += self._run.desired.forget(knob, None)
        dismissed, outputs = self._dismiss(now_ns)
        return [notices.of_run_end(dismissed, wishes), *forgotten, *outputs]

    def _anybody_at_work(self, now_ns: int) -> bool:
        return any(
            state in _AT_WORK and self._fleet.heard_ns_of(row) >= now_ns - self._stale_ns
            for row, state in enumerate(self._fleet.state)
        )

    def _dismiss(self, now_ns: int) -> tuple[list[str], list[Output]]:
        dismissed: list[str] = []
        outputs: list[Output] = []
        if self._dry_run or self._execution.stopped:
            return dismissed, outputs
        for row, hello in enumerate(self._fleet.hello):
            if self._fleet.state[row] == "standby":
                dismissed.append(hello.worker)
                outputs += self._run.commands.issue(
                    hello.worker, hello.incarnation, Drain(), _CAUSE, now_ns
                )[1]
        return dismissed, outputs
