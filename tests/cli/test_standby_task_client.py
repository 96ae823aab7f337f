"""A standby task ends on Ctrl-C, and results that arrived are always shown."""

import os
import signal
from contextlib import asynccontextmanager

import msgspec
import pytest

from tests.pieces import landscape_note
from torchloom_core.capabilities.landscape import MapLandscape
from torchloom_core.cli import standby_task_client
from torchloom_core.cli.options import Connection
from torchloom_core.floor.errors import RequestError
from torchloom_core.live.trajectory.landscape import Landscape
from torchloom_core.wire.decisions import CommandStatus, Outcome
from torchloom_core.wire.landscape import Curvature
from torchloom_core.wire.messages import Note
from torchloom_core.wire.operator import Answer
from torchloom_core.wire.standby_task import End

ACTION, END_REQUEST = MapLandscape(points=9), MapLandscape(points=0)
BOTH = [msgspec.to_builtins(ACTION), msgspec.to_builtins(END_REQUEST)]
BEND = Curvature(loss=1.0, along="step", length=0.5)
STATUS = CommandStatus(
    command="c1", worker="v0-0", incarnation=1, status="accepted", verb="survey", cause="p1"
)


def outcome(result, detail=""):
    return Outcome(
        verdict="p1", policy="alice", action=ACTION, result=result, detail=detail, took_s=1.0
    )


def note(piece):
    return landscape_note(piece, "c1", points=4)


class Talk:
    """A connection to a Weaver with prepared answers and messages."""

    def __init__(self, *answers):
        self.answers, self.actions = list(answers), []

    async def subscribe(self, subject, take, pending):
        self._take_note = take

    async def listen(self, take):
        self._take_message = take

    async def ask(self, verb, data, timeout_s, tries):
        self.actions.append(msgspec.json.decode(data)["action"])
        answer = await self.answers.pop(0)(self)
        if isinstance(answer, Exception):
            raise answer
        return msgspec.json.encode(answer)

    async def send(self, *messages):
        for message in messages:
            data = msgspec.json.encode(message)
            if isinstance(message, Note):
                await self._take_note(type("Msg", (), {"data": data}))
            else:
                self._take_message("", data)


def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


def granted(*messages, presses=0, ids=("c1",)):
    async def answer(talk):
        await talk.send(*messages)
        for _ in range(presses):
            press_ctrl_c()
        return Answer(ok=True, text="granted", ids=ids)

    return answer


async def silence(talk):
    return RequestError("need an answer, was silence")


@pytest.fixture
def connect(monkeypatch):
    """Return a function that gives the client a prepared connection."""

    def connect(talk):
        @asynccontextmanager
        async def connected(connection):
            yield talk

        monkeypatch.setattr(standby_task_client, "open_client", connected)
        monkeypatch.setattr(standby_task_client, "_LAST_PIECE_S", 0.1)

    return connect


@pytest.fixture
def follow(connect):
    """Return a function that follows a task, and returns its results."""

    async def follow(talk):
        connect(talk)
        seen = Landscape()
        connection = Connection(url="nats://127.0.0.1:1")
        interrupted = await standby_task_client.run_standby_task(
            connection, ACTION, END_REQUEST, seen
        )
        return seen, interrupted

    return follow


async def test_ctrl_c_before_the_answer_ends_the_task(follow):
    ended = granted(outcome("undone", "it was cancelled"))
    talk = Talk(granted(STATUS, note(BEND), presses=1), ended)
    with pytest.raises(RequestError, match="undone: it was cancelled"):
        await follow(talk)
    assert talk.actions == BOTH


async def test_ctrl_c_shows_results_although_the_weaver_does_not_answer(follow, capsys):
    seen, interrupted = await follow(Talk(granted(STATUS, note(BEND), presses=1), silence))
    assert (seen.bend, interrupted) == (BEND, True)
    assert (
        capsys.readouterr().err == "warning: the task may still run: need an answer, was silence\n"
    )


async def test_a_second_ctrl_c_does_not_wait_and_warns(follow, capsys):
    talk = Talk(granted(STATUS, note(BEND), presses=2), silence)
    seen, interrupted = await follow(talk)
    assert (seen.bend, interrupted) == (BEND, True)
    assert "the task may still run: the command did not wait for its end" in capsys.readouterr().err


@pytest.mark.parametrize(("messages", "shown"), [([], []), ([note(BEND)], ["shown"])])
def test_results_are_shown_if_there_are_any(connect, messages, shown):
    connect(Talk(granted(STATUS, *messages, presses=1), silence))
    seen, connection, calls = Landscape(), Connection(url="nats://127.0.0.1:1"), []
    status = standby_task_client.run(
        connection, ACTION, END_REQUEST, seen, lambda: calls.append("shown")
    )
    assert (status, calls) == (130, shown)


async def test_a_weaver_that_stops_before_the_end_is_not_waited_for(follow, capsys):
    end = End(points=4, seconds=1.0)
    seen, interrupted = await follow(Talk(granted(STATUS, note(BEND), note(end))))
    assert (seen.end, interrupted) == (end, False)
    warning = "warning: all results arrived, but no outcome from the Weaver: see torchloom status\n"
    assert capsys.readouterr().err == warning


async def test_missing_results_give_a_warning(follow, capsys):
    seen, interrupted = await follow(Talk(granted(STATUS, note(BEND), outcome("done"))))
    assert (seen.bend, interrupted) == (BEND, False)
    warning = capsys.readouterr().err
    assert "some results did not arrive: torchloom landscape TRAJECTORY shows" in warning


async def test_the_end_of_one_standby_is_not_the_end_of_two(follow, capsys):
    end = note(End(points=4, seconds=1.0))
    await follow(Talk(granted(STATUS, end, outcome("done"), ids=("c1", "c2"))))
    assert "some results did not arrive" in capsys.readouterr().err


async def test_an_end_without_results_is_an_error(follow):
    with pytest.raises(RequestError, match="done, but some results did not arrive"):
        await follow(Talk(granted(STATUS, outcome("done"))))


async def test_messages_before_the_answer_count(follow):
    end = End(points=9, seconds=1.0)
    seen, interrupted = await follow(Talk(granted(STATUS, note(BEND), note(end), outcome("done"))))
    assert (seen.bend, seen.end, interrupted) == (BEND, end, False)


async def test_a_refusal_is_an_error(follow):
    async def refused(talk):
        return Answer(ok=False, text="denied by in_progress")

    with pytest.raises(RequestError, match="denied by in_progress"):
        await follow(Talk(refused))
