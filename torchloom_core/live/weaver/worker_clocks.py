"""Shift command deadlines for workers whose hosts' clocks are ahead of the Weaver's.

A worker compares a command's deadline with its own clock: if that is far ahead, every command
would be too late. The hello has the time at which it was sent, so a clock that is ahead is
visible; one that is behind cannot be distinguished from a slow hello.
"""

from collections.abc import Callable

import msgspec

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.wire.commands import Command
from torchloom_core.wire.messages import Hello

_APART_NS = 5 * SECOND_NS
"""A smaller difference is ignored: deadlines are longer."""

_FURTHEST_NS = 10 * 366 * 86_400 * SECOND_NS


class WorkerClocks:
    """How far each worker's clock is ahead of the Weaver's."""

    def __init__(self, warn: Callable[[str, str], None]) -> None:
        self._warn = warn
        self._ahead_ns: dict[tuple[str, int], int] = {}

    def take(self, hello: Hello, now_ns: int) -> None:
        """Take the time in a hello; of an incarnation's hellos the quickest counts."""
        incarnation = hello.worker, hello.incarnation
        ahead_ns = max(self._ahead_ns.get(incarnation, 0), min(hello.ts_ns - now_ns, _FURTHEST_NS))
        if ahead_ns <= _APART_NS:
            return
        self._ahead_ns[incarnation] = ahead_ns
        self._warn(
            "clocks",
            f"the clock of {hello.worker}'s host (node {hello.node}) is {ahead_ns / SECOND_NS:.0f} "
            "s ahead of this host's: its commands' deadlines are shifted by as much; synchronize "
            "both clocks (NTP)",
        )

    def moved(self, command: Command) -> Command:
        """Return the command with its times shifted to the worker's clock."""
        ahead_ns = self._ahead_ns.get((command.worker, command.incarnation), 0)
        if not ahead_ns:
            return command
        return msgspec.structs.replace(
            command,
            issued_ns=command.issued_ns + ahead_ns,
            deadline_ns=command.deadline_ns + ahead_ns,
        )
