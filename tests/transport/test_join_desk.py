"""A herd of join requests is answered one by one, and spread over time."""

import asyncio
import contextlib

import pytest

from tests.waiting import eventually
from torchloom_core.live.transport import join_desk
from torchloom_core.live.transport.join_desk import JoinDesk
from torchloom_core.wire.codec import decode_json, encode
from torchloom_core.wire.messages import JoinReply, JoinRequest


class Message:
    """A request, and its answer."""

    subject = "tl.join.run"
    reply = "_INBOX"

    def __init__(self, number=0, data=None, within_s=60.0):
        worker = f"g{number}-0"
        request = JoinRequest(
            run="run", worker=worker, incarnation=1, public_key="U", within_s=within_s
        )
        self.data = encode(request) if data is None else data
        self.answer = None

    async def respond(self, data):
        self.answer = decode_json(JoinReply, data, "join reply")


class Herd:
    def __init__(self):
        self.notices, self.rejected, self.handled = [], [], []
        self.desk = JoinDesk(
            self.grant,
            lambda: 7,
            lambda subject, reason: self.rejected.append(subject),
            lambda notice: self.notices.append(notice.text),
        )

    async def grant(self, request):
        self.handled.append(request.worker)
        if request.worker == "g666-0":
            raise RuntimeError
        return JoinReply(jwt="jwt")

    async def come(self, *messages):
        for message in messages:
            await self.desk.take(message)


@pytest.fixture
def herd():
    return Herd()


@contextlib.asynccontextmanager
async def open_desk(herd):
    task = asyncio.create_task(herd.desk.run())
    yield
    task.cancel()


async def test_requests_are_answered_in_order_and_what_is_none_at_once(herd):
    asked, time, garbage = Message(), Message(data=b""), Message(data=b"{")
    await herd.come(asked, time, garbage)
    assert (asked.answer, time.answer.ts_ns) == (None, 7)
    assert "join request" in garbage.answer.error
    assert herd.rejected == ["tl.join.run"]
    async with open_desk(herd):
        await eventually(lambda: asked.answer)
    assert asked.answer.jwt == "jwt"


async def test_those_of_a_herd_that_would_wait_too_long_come_back_at_different_times(
    herd, monkeypatch
):
    monkeypatch.setattr(join_desk, "_OVER_S", 0.05)
    messages = [Message(number) for number in range(2_000)]
    await herd.come(*messages)
    waits_s = [message.answer.wait_s for message in messages if message.answer]
    assert 1_400 < len(waits_s) < 1_600  # a second's work is queued
    assert min(waits_s) > 1.0
    assert max(waits_s) < 1.5 * (1.0 + 1_600 * 0.002 / 0.7)
    assert len({round(wait_s, 3) for wait_s in waits_s}) > 1_000
    async with open_desk(herd):
        await eventually(lambda: len(herd.notices) == 2)
    assert herd.notices[0] == (
        "many workers join at once: about 500 a second can, the others later"
    )
    assert herd.notices[1].startswith("no worker has to wait to join any more, after ")
    assert sum(message.answer.jwt == "jwt" for message in messages) == 2_000 - len(waits_s)


async def test_no_worker_is_asked_to_wait_for_more_than_a_minute(herd, monkeypatch):
    monkeypatch.setattr(join_desk, "_FIRST_COST_S", 1.0)
    herd = Herd()
    messages = [Message(number) for number in range(1_000)]
    await herd.come(*messages)
    assert max(message.answer.wait_s for message in messages if message.answer) < 60.0


async def test_a_request_whose_worker_waits_no_more_costs_no_signature(herd):
    late, asked = Message(1, within_s=0.001), Message(2)
    await herd.come(late, asked)
    await asyncio.sleep(0.002)
    async with open_desk(herd):
        await eventually(lambda: asked.answer)
    assert late.answer is None
    assert herd.handled == ["g2-0"]


async def test_an_error_of_one_request_is_logged_and_the_next_is_answered(herd, caplog):
    bad, asked = Message(666), Message(2)
    await herd.come(bad, asked)
    async with open_desk(herd):
        await eventually(lambda: asked.answer)
    assert bad.answer is None
    assert "g666-0" in caplog.records[0].getMessage()
