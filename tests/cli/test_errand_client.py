"""Whoever has enough of an errand ends it, also before they are told that it was granted."""

import os
import signal
from contextlib import asynccontextmanager

import msgspec
import pytest

from torchloom_core.cli import errand_client
from torchloom_core.cli.options import Connection
from torchloom_core.errors import RequestError
from torchloom_core.trajectory.landscape import Landscape
from torchloom_core.wire.actions import MapLandscape
from torchloom_core.wire.events import Outcome
from torchloom_core.wire.operator import Answer

ACTION, LEAVE_OFF = MapLandscape(points=9), MapLandscape(points=0)


class Asked:
    """Stands for the Weaver's connection: a person presses Ctrl-C before the first answer is here.

    The errand ends when it is told to, and the worker has told nothing of it.
    """

    def __init__(self):
        self.actions = []

    async def hear(self, subject, take, pending):
        pass

    async def listen(self, take):
        self._tell = take

    async def ask(self, verb, data, timeout_s, tries):
        action = msgspec.json.decode(data)["action"]
        self.actions.append(action)
        if len(self.actions) == 1:
            os.kill(os.getpid(), signal.SIGINT)
            return msgspec.json.encode(Answer(ok=True, text="granted", ids=("c1",)))
        ended = {"result": "undone", "detail": "it was called off", "took_s": 1.0}
        outcome = Outcome(verdict="c1", policy="alice", action=ACTION, **ended)
        self._tell("outcome", msgspec.json.encode(outcome))
        return msgspec.json.encode(Answer(ok=True, text="granted", ids=("c2",)))


async def test_ctrl_c_before_the_answer_ends_it(monkeypatch):
    asked = Asked()

    @asynccontextmanager
    async def connected(connection):
        yield asked

    monkeypatch.setattr(errand_client, "open_client", connected)
    connection = Connection(url="nats://127.0.0.1:1")
    with pytest.raises(RequestError, match="undone: it was called off"):
        await errand_client.run_errand(connection, ACTION, LEAVE_OFF, Landscape())
    assert asked.actions == [msgspec.to_builtins(ACTION), msgspec.to_builtins(LEAVE_OFF)]
