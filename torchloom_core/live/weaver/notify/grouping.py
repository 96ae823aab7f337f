"""Group alarms by cause, and limit the rate of messages; without a clock of its own."""

from collections import deque
from dataclasses import dataclass, field

import msgspec

from torchloom_core.config.notify import Notify
from torchloom_core.floor.plain_text import plain_line
from torchloom_core.live.weaver.notify.alarms import Alarm

_HOUR_S = 3600.0
_MOST_CAUSES = 50
_MOST_LINES = 10
_OTHERS = "several causes"


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What a channel sends: ``count`` events of one cause, of which ``lines`` are the first.

    ``id`` is the same at each attempt; ``since_s`` is the time of the first event, seconds since
    the Unix epoch.
    """

    id: str
    run: str
    cause: str
    count: int
    since_s: float
    lines: tuple[str, ...]

    @property
    def title(self) -> str:
        """One line."""
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"[torchLoom {self.run}] {self.cause}{times}"

    @property
    def text(self) -> str:
        """All lines, and how many are left out."""
        left_out = self.count - len(self.lines)
        more = (f"and {left_out} more",) if left_out else ()
        return "\n".join((*self.lines, *more))


@dataclass(slots=True)
class _Group:
    since_s: float
    due_s: float
    count: int = 0
    lines: list[str] = field(default_factory=list)


class Groups:
    """The alarms that wait to be sent by one channel, a bounded number of groups and lines."""

    def __init__(self, settings: Notify, run: str, number_of: str) -> None:
        self._settings = settings
        self._run = run
        self._prefix = number_of
        self._number = 0
        self._groups: dict[str, _Group] = {}
        self._sent_s: dict[str, float] = {}
        self._recent_s: deque[float] = deque()

    def __len__(self) -> int:
        return len(self._groups)

    def take(self, alarm: Alarm, now_s: float) -> None:
        """Add an alarm to the group of its cause."""
        if alarm.event not in self._settings.events:
            return
        is_new = alarm.cause not in self._groups
        cause = _OTHERS if is_new and len(self._groups) >= _MOST_CAUSES else alarm.cause
        group = self._groups.get(cause)
        if group is None:
            settings = self._settings
            again_s = self._sent_s.get(cause, -_HOUR_S * 24 * 366) + settings.repeat_s
            group = self._groups[cause] = _Group(now_s, max(now_s + settings.group_s, again_s))
        group.count += 1
        if len(group.lines) < _MOST_LINES:
            group.lines.append(plain_line(alarm.text))

    def next_due(self, now_s: float, *, at_end: bool = False) -> Message | None:
        """Return the next message to send, or None; ``at_end``: also what is not due yet.

        The last message that the hour allows has all causes that are due.
        """
        due = [c for c, group in self._groups.items() if at_end or group.due_s <= now_s]
        while self._recent_s and self._recent_s[0] <= now_s - _HOUR_S:
            self._recent_s.popleft()
        left = self._settings.per_hour - len(self._recent_s)
        if not due or left <= 0:
            return None
        self._recent_s.append(now_s)
        for cause in [c for c, s in self._sent_s.items() if s <= now_s - self._settings.repeat_s]:
            del self._sent_s[cause]
        if left == 1 and len(due) > 1:
            return self._message(_OTHERS, [self._pop(cause, now_s) for cause in due])
        return self._message(due[0], [self._pop(due[0], now_s)])

    def _pop(self, cause: str, now_s: float) -> _Group:
        self._sent_s[cause] = now_s
        return self._groups.pop(cause)

    def _message(self, cause: str, groups: list[_Group]) -> Message:
        self._number += 1
        lines = [line for group in groups for line in group.lines]
        return Message(
            id=f"{self._prefix}.{self._number}",
            run=self._run,
            cause=cause,
            count=sum(group.count for group in groups),
            since_s=min(group.since_s for group in groups),
            lines=tuple(lines[:_MOST_LINES]),
        )
