"""Clocks of workers' hosts that are ahead of the Weaver's: deadlines are moved by as much.

A worker judges a command's deadline by its own clock, so that with one far ahead every command
would come too late. How far it is ahead its hello says, which has the time it was sent at; how
far it is behind cannot be told from how long the hello took.
"""

from collections.abc import Callable

import msgspec

from torchloom_core.clock import SECOND_NS
from torchloom_core.wire.messages import Command, Hello

_APART_NS = 5 * SECOND_NS
"""Less is not worth a word: deadlines are longer."""

_FURTHEST_NS = 10 * 366 * 86_400 * SECOND_NS


class WorkerClocks:
    """By how much each worker's clock is ahead of the Weaver's."""

    def __init__(self, warn: Callable[[str, str], None]) -> None:
        self._warn = warn
        self._ahead_ns: dict[tuple[str, int], int] = {}

    def take(self, hello: Hello, now_ns: int) -> None:
        """Take the time in a hello; of several of one life the quickest counts."""
        incarnation = hello.worker, hello.incarnation
        ahead_ns = max(self._ahead_ns.get(incarnation, 0), min(hello.ts_ns - now_ns, _FURTHEST_NS))
        if ahead_ns <= _APART_NS:
            return
        self._ahead_ns[incarnation] = ahead_ns
        self._warn(
            "clocks",
            f"the clock of {hello.worker}'s host (node {hello.node}) is {ahead_ns / SECOND_NS:.0f} "
            "s ahead of this host's: deadlines of its commands are moved by as much; set the "
            "clocks of both (NTP)",
        )

    def moved(self, command: Command) -> Command:
        """Return the command with its times by the worker's clock."""
        ahead_ns = self._ahead_ns.get((command.worker, command.incarnation), 0)
        if not ahead_ns:
            return command
        return msgspec.structs.replace(
            command,
            issued_ns=command.issued_ns + ahead_ns,
            deadline_ns=command.deadline_ns + ahead_ns,
        )
