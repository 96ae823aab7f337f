"""The record as the dashboard has heard it: each wish from who asked to what it did, and all else.

What belongs to one proposal is one story: the verdict, at which step how many ranks applied it, the
outcome, and what the guard said. A proposal that is made and denied again and again is one story
as well, with how often; but each that has waited for a person has its own.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from torchloom_core.dashboard.policy_statistics import PolicyStatistics
from torchloom_core.kernel.actions.kinds import summary_of
from torchloom_core.plain_text import plain_line, printable
from torchloom_core.trajectory.summaries import summarise
from torchloom_core.wire.actions import Action
from torchloom_core.wire.codec import MAX_MESSAGE_BYTES, UNREADABLE
from torchloom_core.wire.events import (
    CommandStatus,
    Forecast,
    Judged,
    Outcome,
    Proposed,
    Verdict,
)
from torchloom_core.wire.messages import Note
from torchloom_core.wire.requests import PERSON

MOST_STORIES = 1000
MOST_LINES = 2000
MOST_NAMED = 20
"""Workers that a story names of those that did not apply it."""

AT_RISK = 0.1
"""A hazard from which on it is worth a line that somebody has it who had less before."""

_LONGEST = 600
_LONGEST_LOG = 1800
_LONGEST_LEVEL = 16
_UNDER_WAY = 200_000
"""Commands whose ends are waited for; those of which none came are forgotten by then."""

_OF_STORIES = frozenset({"proposed", "verdict", "command_status", "outcome", "judged"})
_UNTOLD = frozenset({"issue", "recall", "forecast_wanted", "reply"})
"""What says nothing that a story, or a request, does not."""

_TOLD_BY_NOTICE = frozenset({"annotate", "take_control", "release_control"})
_FAILED = frozenset({"rejected", "failed", "expired"})
_WAITS, _EXPIRES = "approval", "expiry"
"""Rules by which a proposal waits for approval, and by which one that waited is denied."""

_ENDS_WAITING = frozenset({_EXPIRES, "lapsed", PERSON})

_JUDGED = {True: "hurt", False: "did no harm", None: "was not judged"}

_MOMENTS = frozenset({"proposed", "verdict", "issued", "applied", "outcome", "judged"})

_OfStory = Proposed | Verdict | CommandStatus | Outcome | Judged


@dataclass
class Story:
    """One proposal and what became of it; ``version`` orders the changes of all stories.

    ``said`` is why the verdict was what it is, where the reason of the proposal is not all.
    ``moments`` says when each of ``_MOMENTS`` was first heard of, seconds since the epoch, and
    ``command`` is the first that it led to.
    """

    id: str
    at_s: float
    by: str
    wish: str
    command: str = ""
    reason: str = ""
    gain_gpu_s: float = 0.0
    cost_gpu_s: float = 0.0
    confidence: float = 1.0
    times: int = 1
    granted: bool | None = None
    rule: str = ""
    said: str = ""
    commands: dict[str, int] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    outcome: str = ""
    judged: str = ""
    moments: dict[str, float] = field(default_factory=dict)
    version: int = 0


@dataclass(frozen=True)
class Line:
    """Something else that was told, in one line."""

    version: int
    at_s: float
    kind: str
    text: str
    worker: str = ""


@dataclass(frozen=True)
class TakenIn:
    """A story that has gone into a newer one: it is none of its own any more."""

    version: int
    id: str


_Told = TypeVar("_Told", Line, TakenIn)


class Record:
    """The newest stories and lines.

    Attributes
    ----------
    version : int
        Of the last change.
    tallies : PolicyStatistics
        What came of each policy's proposals, also of those whose stories are forgotten.
    """

    def __init__(self) -> None:
        self.version = 0
        self.tallies = PolicyStatistics()
        self._stories: OrderedDict[str, Story] = OrderedDict()
        self._lines: list[Line] = []
        self._logs: list[Line] = []
        self._taken_in: list[TakenIn] = []
        self._denied: dict[tuple[str, str, str, str], str] = {}
        self._status: dict[str, str] = {}
        self._at_risk: dict[str, frozenset[str]] = {}

    def take(self, kind: str, data: bytes, now_s: float) -> None:
        """Take what the Weaver tells; what is none of its messages is passed over."""
        if kind in _UNTOLD or len(data) > MAX_MESSAGE_BYTES:
            return
        try:
            if kind in _OF_STORIES:
                self._tell(kind, msgspec.json.decode(data, type=_OfStory), now_s)
            else:
                self._line(kind, msgspec.json.decode(data, type=dict[str, Any]), now_s)
        except (*UNREADABLE, KeyError, TypeError, ValueError, AttributeError):
            return  # of another version, or made up: it cannot be shown

    def log(self, note: Note, now_s: float) -> None:
        """Take a line of a trainer's own log."""
        said = note.fields
        text = _plain_lines(f"{said.get('logger', '')}: {said.get('text', '')}")
        if "dropped" in said:
            dropped = plain_line(str(said["dropped"]), _LONGEST_LEVEL)
            text += f" ({dropped} lines before it were dropped)"
        self.version += 1
        level = plain_line(str(said.get("level", "")), _LONGEST_LEVEL)
        self._logs.append(Line(self.version, now_s, level, text, note.worker))
        _cut(self._logs)

    def foresee(self, said: Forecast, now_s: float) -> None:
        """Take a predictor's newest answer: a line if somebody is at risk who was not before."""
        before = self._at_risk.get(said.predictor, frozenset())
        now = frozenset(worker for worker, hazard in said.hazard.items() if hazard >= AT_RISK)
        self._at_risk[said.predictor] = now
        hazard = {worker: said.hazard[worker] for worker in now - before}
        if not hazard:
            return
        worst = max(hazard, key=lambda worker: (hazard[worker], worker))
        body = {"predictor": said.predictor, "horizon_s": said.horizon_s, "hazard": hazard}
        why = said.why.get(worst, "")
        text = f"{summarise('forecast', body)}{f': {why}' if why else ''}"
        self._add("forecast", plain_line(text, _LONGEST), worst, now_s)

    def forget_waiting(self, proposals: Set[str]) -> None:
        """Take that another Weaver decides now, which knows nothing of these that have waited."""
        for proposal in proposals & self._stories.keys():
            story = self._stories[proposal]
            self._denied.pop(_sort(story), None)
            story.rule = _EXPIRES
            story.said = "the Weaver was started anew before anybody approved it"
            self._touch(story)

    def logs_since(self, version: int) -> list[Line]:
        """Return the lines of trainers' logs after ``version``, the oldest first."""
        return _since(self._logs, version)

    def stories_since(self, version: int) -> list[Story]:
        """Return the stories that have changed after ``version``, the oldest first."""
        return [story for story in self._stories.values() if story.version > version]

    def taken_in_since(self, version: int) -> list[TakenIn]:
        """Return the stories that went into others after ``version``, the oldest first."""
        return _since(self._taken_in, version)

    def lines_since(self, version: int) -> list[Line]:
        """Return the lines after ``version``, the oldest first."""
        return _since(self._lines, version)

    # --- one by one ---

    def _line(self, kind: str, body: Mapping[str, Any], now_s: float) -> None:
        if kind == "request" and body["want"]["want"] in _TOLD_BY_NOTICE:
            return
        text = plain_line(summarise(kind, body), _LONGEST)
        if not text:
            return
        self._add(str(body.get("kind", kind)), text, str(body.get("worker") or ""), now_s)

    def _add(self, kind: str, text: str, worker: str, now_s: float) -> None:
        self.version += 1
        self._lines.append(Line(self.version, now_s, kind, text, worker))
        _cut(self._lines)

    def _tell(self, kind: str, told: _OfStory, now_s: float) -> None:
        match told:
            case Proposed(proposal=proposal):
                story = self._story(told.id, told.policy, proposal.action, now_s)
                story.reason = plain_line(proposal.reason, _LONGEST)
                story.gain_gpu_s, story.cost_gpu_s = proposal.gain_gpu_s, proposal.cost_gpu_s
                story.confidence = proposal.confidence
            case Verdict():
                story = self._story(told.proposal, told.policy, told.action, now_s)
                self._decide(story, told)
                self.tallies.decided(told)
            case CommandStatus():
                known = self._stories.get(told.cause)
                if known is None:
                    return
                story = known
                self._count(story, told)
            case Outcome():
                story = self._story(told.verdict, told.policy, told.action, now_s)
                story.outcome = plain_line(f"{told.result}: {told.detail}", _LONGEST)
                self.tallies.ended(told)
            case Judged():
                known = self._stories.get(told.verdict)
                if known is None:
                    return
                story = known
                story.judged = plain_line(f"{_JUDGED[told.hurt]}: {told.text}", _LONGEST)
                self.tallies.judged(story.by, told)
        moment = told.status if isinstance(told, CommandStatus) else kind
        if moment in _MOMENTS:
            story.moments.setdefault(moment, now_s)
        self._touch(story)

    def _story(self, story_id: str, by: str, action: Action, now_s: float) -> Story:
        story = self._stories.get(story_id)
        if story is None:
            wish = plain_line(summary_of(msgspec.to_builtins(action)), _LONGEST)
            story = self._stories[story_id] = Story(id=story_id, at_s=now_s, by=by, wish=wish)
            if len(self._stories) > MOST_STORIES:
                self._stories.popitem(last=False)
        return story

    def _decide(self, story: Story, verdict: Verdict) -> None:
        if self._denied.get(_sort(story)) == story.id:
            del self._denied[_sort(story)]  # it has waited for a person
        story.granted, story.rule = verdict.granted, verdict.rule
        said = plain_line(verdict.reason, _LONGEST)
        story.said = "" if said == story.reason else said
        if story.granted or story.rule in _ENDS_WAITING:
            return
        # What is proposed at each tick, and denied each time for one reason, is one story.
        same = _sort(story)
        earlier = self._stories.pop(self._denied.get(same, ""), None)
        if earlier is not None and earlier is not story:
            story.times += earlier.times
            self.version += 1
            self._taken_in.append(TakenIn(self.version, earlier.id))
            _cut(self._taken_in)
        self._stories[story.id] = story
        self._denied[same] = story.id
        if len(self._denied) > MOST_STORIES:
            self._denied.pop(next(iter(self._denied)))

    def _count(self, story: Story, life: CommandStatus) -> None:
        story.command = story.command or life.command
        before = self._status.pop(life.command, "")
        counts = Counter(story.commands)
        counts[before] -= 1
        counts[life.status] += 1
        story.commands = {word: count for word, count in counts.items() if count > 0}
        if life.status == "applied":
            story.steps[life.step] = story.steps.get(life.step, 0) + 1
        elif life.status in _FAILED:
            if len(story.late) < MOST_NAMED:
                detail = plain_line(life.detail, _LONGEST)
                story.late.append(f"{life.worker} {life.status}: {detail}")
        else:
            if len(self._status) >= _UNDER_WAY:
                self._status.clear()
            self._status[life.command] = life.status

    def _touch(self, story: Story) -> None:
        self.version += 1
        story.version = self.version
        self._stories.move_to_end(story.id)


def _plain_lines(text: str) -> str:
    """Return a text of several lines, such as a traceback, none of which is more than text."""
    if len(text) > _LONGEST_LOG:  # what went wrong stands at its end
        text = f"{text[: _LONGEST_LOG // 3]} ... {text[-_LONGEST_LOG // 3 :]}"
    lines = text.expandtabs(4).splitlines()
    return "\n".join(printable(line.rstrip()) for line in lines if line.strip())[:_LONGEST_LOG]


def _sort(story: Story) -> tuple[str, str, str, str]:
    """Return what a denial has in common with those that are told with it.

    Of those that wait for a person, and those denied as one waits already, that is what was said.
    """
    return story.by, story.wish, story.rule, story.said if story.rule == _WAITS else ""


def _since(lines: list[_Told], version: int) -> list[_Told]:
    begin = len(lines)
    while begin and lines[begin - 1].version > version:
        begin -= 1
    return lines[begin:]


def _cut(lines: list[_Told]) -> None:
    if len(lines) > MOST_LINES + MOST_LINES // 4:
        del lines[: len(lines) - MOST_LINES]
