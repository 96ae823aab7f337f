"""The run's record as the dashboard has received it: decisions, other events, and trainers' logs.

A story is one decision: the proposal, the verdict, at which step how many ranks applied it, the
outcome, and the guard's judgement. A proposal that is repeated and denied again is one story with a
count, unless it has waited for approval.
"""

import re
from collections import Counter, OrderedDict
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from torchloom_core.floor.plain_text import plain_line, printable
from torchloom_core.live.dashboard.policy_statistics import PolicyStatistics
from torchloom_core.live.kernel.actions.kinds import summary_of
from torchloom_core.live.trajectory.summaries import summarise
from torchloom_core.wire.actions import Action
from torchloom_core.wire.capabilities import from_json
from torchloom_core.wire.codec import MAX_MESSAGE_BYTES, UNREADABLE
from torchloom_core.wire.decisions import CommandStatus, Judged, Outcome, Proposed, Verdict
from torchloom_core.wire.events import Forecast
from torchloom_core.wire.messages import Note
from torchloom_core.wire.requests import PERSON

MOST_STORIES = 1000
MOST_LINES = 2000
MOST_NAMED = 20
"""Workers named by a story of those that did not apply it."""

AT_RISK = 0.1
"""A failure probability that is worth a line when a worker reaches it."""

_LONGEST = 600
_LONGEST_LOG = 1800
_LONGEST_LEVEL = 16
_UNDER_WAY = 200_000
"""Commands under way that are tracked; beyond this, lost ones are dropped."""

_OF_STORIES = frozenset({"proposed", "verdict", "command_status", "outcome", "judged"})
_SKIPPED = frozenset({"issue", "withdrawal", "forecast_wanted", "reply"})
"""Outputs that repeat a story or a request."""

_HAS_NOTICE = frozenset({"annotate", "take_control", "release_control"})
_FAILED = frozenset({"rejected", "failed", "expired"})
_WAITS, _EXPIRES = "approval", "expiry"
"""Rules by which a proposal waits for approval, and by which one that waited expires."""

_ENDS_WAITING = frozenset({_EXPIRES, "lapsed", PERSON})
_ALREADY = re.compile(r"^\S+ already waits for approval$")
"""The verdict on a proposal that repeats one that waits: the repeated one does not wait itself."""

_JUDGED = {True: "did harm", False: "did no harm", None: "not judged"}

_CHANGES = frozenset({"knob", "knobs"})
"""Kinds of action that set knobs."""

_MOMENTS = frozenset({"proposed", "verdict", "issued", "applied", "outcome", "judged"})
_WAITING = "waits"

_OfStory = Proposed | Verdict | CommandStatus | Outcome | Judged


@dataclass
class Story:
    """One proposal and what became of it; ``version`` orders the changes of all stories.

    ``detail`` is the verdict's reason where it differs from the proposal's. ``moments`` has the
    time of the first of each of ``_MOMENTS``, seconds since the epoch, of the verdict that of the
    newest, and ``waits``, since when it has waited for approval; ``command`` is the first command.
    ``before`` has the values of the changed knobs before the change, where known.
    """

    id: str
    at_s: float
    by: str
    summary: str
    action: dict[str, Any] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    reason: str = ""
    gain_gpu_s: float = 0.0
    cost_gpu_s: float = 0.0
    confidence: float = 1.0
    times: int = 1
    granted: bool | None = None
    rule: str = ""
    detail: str = ""
    commands: dict[str, int] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    outcome: str = ""
    judged: str = ""
    moments: dict[str, float] = field(default_factory=dict)
    version: int = 0


@dataclass(frozen=True)
class Line:
    """Another event in one line, or the id of a story that was merged into a newer one."""

    version: int
    at_s: float
    kind: str
    text: str
    worker: str = ""


class Record:
    """The newest stories and lines; ``version`` is that of the last change.

    ``statistics`` also count stories that are no longer stored. ``knob_values`` has the value of
    each knob that is the same on all workers: what a change starts from.
    """

    def __init__(self) -> None:
        self.version = 0
        self.statistics = PolicyStatistics()
        self.knob_values: dict[str, Any] = {}
        self._stories: OrderedDict[str, Story] = OrderedDict()
        self._lines: list[Line] = []
        self._logs: list[Line] = []
        self._taken_in: list[Line] = []
        self._denied: dict[tuple[str, str, str, str], str] = {}
        self._status: dict[str, str] = {}
        self._at_risk: dict[str, frozenset[str]] = {}

    def take(self, kind: str, data: bytes, now_s: float) -> None:
        """Take an output of the Weaver; a message that cannot be read is ignored."""
        if kind in _SKIPPED or len(data) > MAX_MESSAGE_BYTES:
            return
        try:
            if kind in _OF_STORIES:
                self._update(kind, from_json(data, _OfStory), now_s)
            else:
                self._line(kind, msgspec.json.decode(data, type=dict[str, Any]), now_s)
        except (*UNREADABLE, KeyError, TypeError, ValueError, AttributeError):
            return  # another version, or no message of the Weaver: it cannot be shown

    def log(self, note: Note, now_s: float) -> None:
        """Take a line of a trainer's log."""
        fields = note.fields
        text = _plain_lines(f"{fields.get('logger', '')}: {fields.get('text', '')}")
        if "dropped" in fields:
            dropped = plain_line(str(fields["dropped"]), _LONGEST_LEVEL)
            text += f" ({dropped} lines before it were dropped)"
        self.version += 1
        level = plain_line(str(fields.get("level", "")), _LONGEST_LEVEL)
        self._logs.append(Line(self.version, now_s, level, text, note.worker))
        _cut(self._logs)

    def add_forecast(self, forecast: Forecast, now_s: float) -> None:
        """Take a predictor's newest forecast: a line if a worker is at risk that was not before."""
        before = self._at_risk.get(forecast.predictor, frozenset())
        now = frozenset(worker for worker, hazard in forecast.hazard.items() if hazard >= AT_RISK)
        self._at_risk[forecast.predictor] = now
        hazard = {worker: forecast.hazard[worker] for worker in now - before}
        if not hazard:
            return
        worst = max(hazard, key=lambda worker: (hazard[worker], worker))
        body = {"predictor": forecast.predictor, "horizon_s": forecast.horizon_s, "hazard": hazard}
        why = forecast.why.get(worst, "")
        text = f"{summarise('forecast', body)}{f': {why}' if why else ''}"
        self._add("forecast", plain_line(text, _LONGEST), worst, now_s)

    def forget_waiting(self, proposals: Set[str]) -> None:
        """Expire proposals that waited for approval: a new Weaver does not know them."""
        for proposal in proposals & self._stories.keys():
            story = self._stories[proposal]
            self._denied.pop(_sort(story), None)
            story.rule = _EXPIRES
            story.detail = "the Weaver restarted before it was approved"
            self._touch(story)

    def since(self, version: int) -> dict[str, Any]:
        """Return what has changed after ``version``, the oldest first, and all statistics."""
        stories = (story for story in self._stories.values() if story.version > version)
        return {
            "merged": [one.text for one in _since(self._taken_in, version)],
            "stories": [asdict(story) for story in stories],
            "lines": [asdict(line) for line in _since(self._lines, version)],
            "logs": [asdict(line) for line in _since(self._logs, version)],
            "statistics": {name: asdict(one) for name, one in self.statistics.of.items()},
        }

    # --- updates ---

    def _line(self, kind: str, body: Mapping[str, Any], now_s: float) -> None:
        if kind == "request" and body["want"]["want"] in _HAS_NOTICE:
            return
        text = plain_line(summarise(kind, body), _LONGEST)
        if not text:
            return
        self._add(str(body.get("kind", kind)), text, str(body.get("worker") or ""), now_s)

    def _add(self, kind: str, text: str, worker: str, now_s: float) -> None:
        self.version += 1
        self._lines.append(Line(self.version, now_s, kind, text, worker))
        _cut(self._lines)

    def _update(self, kind: str, output: _OfStory, now_s: float) -> None:
        match output:
            case Proposed(proposal=proposal):
                story = self._story(output.id, output.policy, proposal.action, now_s)
                story.reason = plain_line(proposal.reason, _LONGEST)
                story.gain_gpu_s, story.cost_gpu_s = proposal.gain_gpu_s, proposal.cost_gpu_s
                story.confidence = proposal.confidence
            case Verdict():
                story = self._story(output.proposal, output.policy, output.action, now_s)
                earlier, rule = story.granted, story.rule
                is_repeat = self._decide(story, output)
                self.statistics.decided(output, earlier, is_repeat=is_repeat)
                waits = story.rule == _WAITS and not story.granted
                if waits and not _ALREADY.match(story.detail):
                    story.moments.setdefault(_WAITING, now_s)
                elif (output.granted, output.rule) != (earlier, rule):
                    story.moments["verdict"] = now_s
            case CommandStatus(cause=story_id) | Judged(verdict=story_id):
                if story_id not in self._stories:
                    return
                story = self._stories[story_id]
                if isinstance(output, CommandStatus):
                    self._count(story, output)
                else:
                    self._judge(story, output)
            case Outcome():
                story = self._story(output.verdict, output.policy, output.action, now_s)
                story.outcome = plain_line(f"{output.result}: {output.detail}", _LONGEST)
                self.statistics.ended(output)
        moment = output.status if isinstance(output, CommandStatus) else kind
        if moment in _MOMENTS and not isinstance(output, Verdict):
            story.moments.setdefault(moment, now_s)
        self._touch(story)

    def _story(self, story_id: str, by: str, action: Action, now_s: float) -> Story:
        story = self._stories.get(story_id)
        if story is None:
            fields = msgspec.to_builtins(action)
            summary = plain_line(summary_of(fields), _LONGEST)
            story = Story(id=story_id, at_s=now_s, by=by, summary=summary, action=fields)
            names = fields.get("values") or {fields.get("knob"): None}
            if fields["kind"] in _CHANGES:
                story.before = {k: v for k, v in self.knob_values.items() if k in names}
            self._stories[story_id] = story
            if len(self._stories) > MOST_STORIES:
                self._stories.popitem(last=False)
        return story

    def _decide(self, story: Story, verdict: Verdict) -> bool:
        """Take a verdict; return whether it repeats that on an earlier proposal."""
        if self._denied.get(_sort(story)) == story.id:
            del self._denied[_sort(story)]  # it has waited for approval
        story.granted, story.rule = verdict.granted, verdict.rule
        reason = plain_line(verdict.reason, _LONGEST)
        story.detail = "" if reason == story.reason else reason
        if story.granted:
            for name in story.before:  # known again once the table of knobs has been read
                self.knob_values.pop(name, None)
        if story.granted or story.rule in _ENDS_WAITING:
            return False
        # A proposal that is repeated each tick and denied by one rule is one story.
        same = _sort(story)
        earlier = self._stories.pop(self._denied.get(same, ""), None)
        if earlier is not None and earlier is not story:
            story.times += earlier.times
            self.version += 1
            self._taken_in.append(Line(self.version, earlier.at_s, "merged", earlier.id))
            _cut(self._taken_in)
        self._stories[story.id] = story
        self._denied[same] = story.id
        if len(self._denied) > MOST_STORIES:
            self._denied.pop(next(iter(self._denied)))
        return earlier is not None and earlier is not story

    def _count(self, story: Story, command: CommandStatus) -> None:
        story.command = story.command or command.command
        before = self._status.pop(command.command, "")
        counts = Counter(story.commands)
        counts[before] -= 1
        counts[command.status] += 1
        story.commands = {word: count for word, count in counts.items() if count > 0}
        if command.status == "applied":
            story.steps[command.step] = story.steps.get(command.step, 0) + 1
        elif command.status in _FAILED:
            if len(story.failures) < MOST_NAMED:
                detail = plain_line(command.detail, _LONGEST)
                story.failures.append(f"{command.worker} {command.status}: {detail}")
        else:
            if len(self._status) >= _UNDER_WAY:
                self._status.clear()
            self._status[command.command] = command.status

    def _judge(self, story: Story, output: Judged) -> None:
        story.judged = plain_line(f"{_JUDGED[output.hurt]}: {output.text}", _LONGEST)
        story.before |= output.before
        self.statistics.judged(story.by, output)

    def _touch(self, story: Story) -> None:
        self.version += 1
        story.version = self.version
        self._stories.move_to_end(story.id)


def _plain_lines(text: str) -> str:
    """Return a text of several lines, such as a traceback, as printable lines."""
    if len(text) > _LONGEST_LOG:  # the error is at the end
        text = f"{text[: _LONGEST_LOG // 3]} ... {text[-_LONGEST_LOG // 3 :]}"
    lines = text.expandtabs(4).splitlines()
    return "\n".join(printable(line.rstrip()) for line in lines if line.strip())[:_LONGEST_LOG]


def _sort(story: Story) -> tuple[str, str, str, str]:
    """Return what denials have in common that are one story; if they wait, the reason, too."""
    return story.by, story.summary, story.rule, story.detail if story.rule == _WAITS else ""


def _since(lines: list[Line], version: int) -> list[Line]:
    begin = len(lines)
    while begin and lines[begin - 1].version > version:
        begin -= 1
    return lines[begin:]


def _cut(lines: list[Line]) -> None:
    if len(lines) > MOST_LINES + MOST_LINES // 4:
        del lines[: len(lines) - MOST_LINES]
