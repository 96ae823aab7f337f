"""Stores the answers to requests, so that a request that is sent again is not done again."""

from collections.abc import Container, Iterable, Sequence

import msgspec

from torchloom_core.floor.persistent_table import PersistentTable
from torchloom_core.wire.decisions import Issue, Output, Reply, Verdict
from torchloom_core.wire.events import Answered
from torchloom_core.wire.requests import Request, ResumeActions, StopActions

_STORED = 256


def answer_to(request: Request, outputs: Sequence[Output], under_way: Container[str]) -> Reply:
    """Return the reply to a request from its ``outputs``; ``under_way`` are plans' verdicts."""
    verdict = next(output for output in outputs if isinstance(output, Verdict))
    text = "granted" if verdict.granted else f"denied by {verdict.rule}: {verdict.reason}"
    ids = tuple(output.command.id for output in outputs if isinstance(output, Issue))
    if not ids and verdict.proposal in under_way:
        ids = (verdict.proposal,)  # it waits for an earlier change
    return Reply(request=request.id, ok=verdict.granted, text=text, ids=ids)


class Answers:
    """The last answers to requests that have an id of their sender; ``table`` is by that id."""

    def __init__(self) -> None:
        self._numbered = 0
        self.table: PersistentTable[Answered] = PersistentTable("answer")

    def repeated(self, request: Request) -> Reply | None:
        """Return the earlier answer to the same request, unless that is of the kill switch."""
        answered = self.table.get(request.sent_as)
        if answered is None or isinstance(request.want, StopActions | ResumeActions):
            return None
        return msgspec.structs.replace(answered.reply, request=request.id)

    def store(self, request: Request, reply: Reply) -> None:
        """Store an answer, and drop the oldest of more than 256."""
        if not request.sent_as:
            return
        self._numbered += 1
        self.table[request.sent_as] = Answered(
            sent_as=request.sent_as, number=self._numbered, reply=reply
        )
        if len(self.table) > _STORED:
            del self.table[next(iter(self.table))]

    def restore(self, answers: Iterable[Answered]) -> None:
        """Take over the answers of an earlier Weaver."""
        for answered in sorted(answers, key=lambda answered: answered.number):
            self.table[answered.sent_as] = answered
            self._numbered = answered.number
