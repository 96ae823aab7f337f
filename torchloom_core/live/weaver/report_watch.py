"""Whether the Weaver has handled all reports of workers; checked before a deadline is applied.

Only a Weaver without a backlog lets commands expire. The kernel gets a backlog as an input, so
that a replay decides as the Weaver did.
"""

from collections.abc import Awaitable, Callable

from torchloom_core.floor.clock import SECOND_NS, Clock
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.wire.events import Backlog

_GAP_NS = 5 * SECOND_NS
"""A tick that is later than this shows that the Weaver was frozen, or its machine suspended."""


class ReportWatch:
    """Informs the kernel when the Weaver lags behind its reports, and when it has caught up."""

    def __init__(
        self,
        kernel: Kernel,
        clock: Clock,
        taken_until_ns: Callable[[], Awaitable[int | None]],
        enter: Callable[[Backlog], None],
    ) -> None:
        self._kernel = kernel
        self._clock = clock
        self._get_taken_until = taken_until_ns
        self._enter = enter
        self._behind_ns: int | None = None
        self._checked_ns = clock.now_ns()

    def begin(self) -> None:
        """Assume a backlog if commands are in flight: no Weaver was running."""
        self._checked_ns = self._clock.now_ns()
        if self._kernel.commands.flights or self._kernel.run.plans.table:
            self._set(0)

    async def check(self) -> None:
        """Check before a tick, if a command or plan may expire at it."""
        now_ns, last_ns = self._clock.now_ns(), self._checked_ns
        self._checked_ns = now_ns
        commands, plans = self._kernel.commands, self._kernel.run.plans
        if self._behind_ns is None:
            if now_ns - last_ns > _GAP_NS and (commands.flights or plans.table):
                self._set(last_ns)
            elif not (commands.is_due(now_ns) or plans.is_due(now_ns)):
                return
        self._set(await self._get_taken_until())
        self._checked_ns = self._clock.now_ns()

    def _set(self, taken_until_ns: int | None) -> None:
        if taken_until_ns != self._behind_ns:
            self._behind_ns = taken_until_ns
            self._enter(Backlog(taken_until_ns=taken_until_ns))
