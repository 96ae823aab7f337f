"""Whether the Weaver has taken in all that workers have reported, asked where that matters.

A deadline is judged, and a worker's command given up, only by a Weaver that is up to date. The
kernel hears of a backlog as an input, so that a replay judges as the Weaver did.
"""

from collections.abc import Awaitable, Callable

from torchloom_core.clock import SECOND_NS, Clock
from torchloom_core.kernel.kernel import Kernel
from torchloom_core.wire.events import Backlog

_GAP_NS = 5 * SECOND_NS
"""A tick that is later than this, and the Weaver was not there: frozen, or its machine asleep."""


class ReportWatch:
    """Tells the kernel when the Weaver lags behind its reports, and when it has caught up.

    Parameters
    ----------
    taken_until_ns : coroutine function
        Returns a time before which all reports were taken in, None where that is now.
    enter : callable
        Hands an input to the kernel.
    """

    def __init__(
        self,
        kernel: Kernel,
        clock: Clock,
        taken_until_ns: Callable[[], Awaitable[int | None]],
        enter: Callable[[Backlog], None],
    ) -> None:
        self._kernel = kernel
        self._clock = clock
        self._ask = taken_until_ns
        self._enter = enter
        self._behind_ns: int | None = None
        self._looked_ns = clock.now_ns()

    def begin(self) -> None:
        """Take it that there is a backlog: no Weaver was there, and commands are under way."""
        self._looked_ns = self._clock.now_ns()
        if self._kernel.commands.flights or self._kernel.run.plans.table:
            self._say(0)

    async def look(self) -> None:
        """Look before a tick, if something would be given up at it."""
        now_ns, last_ns = self._clock.now_ns(), self._looked_ns
        self._looked_ns = now_ns
        commands, plans = self._kernel.commands, self._kernel.run.plans
        if self._behind_ns is None:
            if now_ns - last_ns > _GAP_NS and (commands.flights or plans.table):
                self._say(last_ns)
            elif not (commands.is_due(now_ns) or plans.is_due(now_ns)):
                return
        self._say(await self._ask())
        self._looked_ns = self._clock.now_ns()

    def _say(self, taken_until_ns: int | None) -> None:
        if taken_until_ns != self._behind_ns:
            self._behind_ns = taken_until_ns
            self._enter(Backlog(taken_until_ns=taken_until_ns))
