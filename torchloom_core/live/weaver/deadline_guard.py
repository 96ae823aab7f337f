"""Interrupt a policy that takes too long; the daemon passes this guard to the kernel."""

import signal
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager

from torchloom_core.interface.foreign import code_place
from torchloom_core.live.dispatch.policy_guard import PolicyOverran
from torchloom_core.live.kernel.plugins.host import PolicyHost


class DeadlineGuard:
    """Interrupt a policy that takes more than ``budget_s``, by a timer signal; main thread only.

    The signal is repeated until the policy ends, as a policy may swallow the first interrupt. Code
    that never returns to the interpreter cannot be interrupted.
    """

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s

    @contextmanager
    def limit(self, policy: str, seq: int) -> Iterator[None]:
        """Run the block with the timer set."""
        del policy, seq
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handler = signal.signal(signal.SIGALRM, self._interrupt)
        timer = signal.setitimer(signal.ITIMER_REAL, self._budget_s, self._budget_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, *timer)

    def _interrupt(self, signum: int, frame: types.FrameType | None) -> None:
        del signum
        if frame is None or frame.f_code.co_filename in _GUARD_FILES:
            return  # before or after the policy: the exception would hit the kernel
        raise PolicyOverran(
            f"took more than {self._budget_s:g} s ({code_place(frame.f_code, frame.f_lineno)})"
        )


_GUARD_FILES = {
    code.co_filename
    for code in (
        contextmanager.__code__,
        PolicyHost.propose.__code__,
        DeadlineGuard._interrupt.__code__,
    )
}
