"""Whoever has enough of a standby task ends it, and what was heard of it is never lost."""

import os
import signal
from contextlib import asynccontextmanager

import msgspec
import pytest

from torchloom_core.cli import standby_task_client
from torchloom_core.cli.options import Connection
from torchloom_core.errors import RequestError
from torchloom_core.trajectory.landscape import Landscape
from torchloom_core.wire.actions import MapLandscape
from torchloom_core.wire.events import CommandStatus, Outcome
from torchloom_core.wire.landscape import Bend
from torchloom_core.wire.messages import Note
from torchloom_core.wire.operator import Answer
from torchloom_core.wire.standby_task import End

ACTION, LEAVE_OFF = MapLandscape(points=9), MapLandscape(points=0)
BOTH = [msgspec.to_builtins(ACTION), msgspec.to_builtins(LEAVE_OFF)]
BEND = Bend(loss=1.0, along="step", length=0.5)
LIFE = CommandStatus(
    command="c1", worker="v0-0", incarnation=1, status="accepted", verb="survey", cause="p1"
)


def outcome(result, detail=""):
    return Outcome(
        verdict="p1", policy="alice", action=ACTION, result=result, detail=detail, took_s=1.0
    )


def note(piece):
    text = msgspec.json.encode(piece).decode()
    fields = {"command": "c1", "points": 4, "of": 9, "piece": text}
    return Note(run="run", worker="v0-0", incarnation=1, kind="landscape", fields=fields)


class Talk:
    """The connection to a Weaver that answers as it is told, and tells what it is told to tell."""

    def __init__(self, *answers):
        self.answers, self.actions = list(answers), []

    async def subscribe(self, subject, take, pending):
        self._take_note = take

    async def listen(self, take):
        self._take_told = take

    async def ask(self, verb, data, timeout_s, tries):
        self.actions.append(msgspec.json.decode(data)["action"])
        answer = await self.answers.pop(0)(self)
        if isinstance(answer, Exception):
            raise answer
        return msgspec.json.encode(answer)

    async def tell(self, *messages):
        for message in messages:
            data = msgspec.json.encode(message)
            if isinstance(message, Note):
                await self._take_note(type("Msg", (), {"data": data}))
            else:
                self._take_told("", data)


def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


def granted(*told, presses=0, ids=("c1",)):
    async def answer(talk):
        await talk.tell(*told)
        for _ in range(presses):
            press_ctrl_c()
        return Answer(ok=True, text="granted", ids=ids)

    return answer


async def silence(talk):
    return RequestError("need an answer, was silence")


@pytest.fixture
def connect(monkeypatch):
    """Return a function that has the client talk as it is told."""

    def connect(talk):
        @asynccontextmanager
        async def connected(connection):
            yield talk

        monkeypatch.setattr(standby_task_client, "open_client", connected)
        monkeypatch.setattr(standby_task_client, "_LAST_PIECE_S", 0.1)

    return connect


@pytest.fixture
def follow(connect):
    """Return a function that follows what a talk is about, and returns what was seen of it."""

    async def follow(talk):
        connect(talk)
        seen = Landscape()
        connection = Connection(url="nats://127.0.0.1:1")
        has_enough = await standby_task_client.run_standby_task(connection, ACTION, LEAVE_OFF, seen)
        return seen, has_enough

    return follow


async def test_ctrl_c_before_the_answer_ends_it(follow):
    ended = granted(outcome("undone", "it was called off"))
    talk = Talk(granted(LIFE, note(BEND), presses=1), ended)
    with pytest.raises(RequestError, match="undone: it was called off"):
        await follow(talk)
    assert talk.actions == BOTH


async def test_ctrl_c_shows_what_there_is_though_the_weaver_is_silent(follow, capsys):
    seen, has_enough = await follow(Talk(granted(LIFE, note(BEND), presses=1), silence))
    assert (seen.bend, has_enough) == (BEND, True)
    assert capsys.readouterr().err == "warning: it may go on: need an answer, was silence\n"


async def test_a_second_ctrl_c_waits_for_nothing_and_says_so(follow, capsys):
    talk = Talk(granted(LIFE, note(BEND), presses=2), silence)
    seen, has_enough = await follow(talk)
    assert (seen.bend, has_enough) == (BEND, True)
    assert "it may go on: its end was not waited for" in capsys.readouterr().err


@pytest.mark.parametrize(("heard", "shown"), [([], []), ([note(BEND)], ["shown"])])
def test_what_there_is_is_shown_where_there_is_any(connect, heard, shown):
    connect(Talk(granted(LIFE, *heard, presses=1), silence))
    seen, connection, told = Landscape(), Connection(url="nats://127.0.0.1:1"), []
    status = standby_task_client.run(
        connection, ACTION, LEAVE_OFF, seen, lambda: told.append("shown")
    )
    assert (status, told) == (130, shown)


async def test_a_weaver_that_is_gone_before_the_end_is_not_waited_for(follow, capsys):
    end = End(points=4, seconds=1.0)
    seen, has_enough = await follow(Talk(granted(LIFE, note(BEND), note(end))))
    assert (seen.end, has_enough) == (end, False)
    said = "warning: all of it was heard, but of the Weaver nothing: see torchloom status\n"
    assert capsys.readouterr().err == said


async def test_an_end_of_which_a_part_was_heard_is_said_to_be_on_record(follow, capsys):
    seen, has_enough = await follow(Talk(granted(LIFE, note(BEND), outcome("done"))))
    assert (seen.bend, has_enough) == (BEND, False)
    said = capsys.readouterr().err
    assert "not all of it was heard: torchloom landscape TRAJECTORY shows" in said


async def test_the_end_of_one_stand_by_is_not_that_of_two(follow, capsys):
    end = note(End(points=4, seconds=1.0))
    await follow(Talk(granted(LIFE, end, outcome("done"), ids=("c1", "c2"))))
    assert "not all of it was heard" in capsys.readouterr().err


async def test_an_end_of_which_nothing_was_heard_is_no_success(follow):
    with pytest.raises(RequestError, match="done, but not all of it was heard"):
        await follow(Talk(granted(LIFE, outcome("done"))))


async def test_what_is_heard_before_the_answer_counts(follow):
    end = End(points=9, seconds=1.0)
    seen, has_enough = await follow(Talk(granted(LIFE, note(BEND), note(end), outcome("done"))))
    assert (seen.bend, seen.end, has_enough) == (BEND, end, False)


async def test_a_refusal_is_the_answer(follow):
    async def refused(talk):
        return Answer(ok=False, text="denied by in_progress")

    with pytest.raises(RequestError, match="denied by in_progress"):
        await follow(Talk(refused))
