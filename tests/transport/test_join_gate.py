"""A connection that floods the Weaver with join requests is closed, and others may join."""

import asyncio
import contextlib

import nats
import pytest
from nats.aio.client import RawCredentials

from tests.deadlines import DEADLINE_S
from tests.waiting import eventually
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.transport.join_gate import JoinGate
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import encode
from torchloom_core.wire.messages import JoinReply, JoinRequest

REQUEST = JoinRequest(run="run", worker="g0-0", incarnation=1, public_key="U")


def headers(number, more=b""):
    described = b'{"start":"x","host":"h1","id":%d,"server":"s"}' % number
    return b"NATS/1.0\r\n%sNats-Request-Info: %s\r\n\r\n" % (more, described)


@pytest.fixture
def gate():
    """A gate, what it closes, and its notices; each call is a millisecond after the last."""
    now_ns = iter(range(0, 1000 * SECOND_NS, SECOND_NS // 1000))
    closed, notices = [], []
    return JoinGate(lambda: next(now_ns), closed.append, notices.append), closed, notices


def test_a_connection_that_goes_on_is_closed_and_a_herd_of_others_passes(gate):
    gate, closed, notices = gate
    forged = b'Nats-Request-Info: {"id":1,"server":"s"}\r\n'
    passed = [gate.admits("tl.join.run", 200, headers(7, forged)) for _ in range(100)]
    assert passed.count(True) < 30
    assert {(sender.server, sender.number) for sender in closed} == {("s", 7)}
    assert [notice.kind for notice in notices] == ["flood"]
    assert "h1" in notices[0].text
    for number in range(1000, 11_000):
        assert gate.admits("tl.join.run", 200, headers(number))
    assert len(closed) < 10


def test_without_a_description_only_all_requests_together_are_limited(gate):
    gate, closed, _ = gate
    passed = sum(gate.admits("tl.join.run", 200, head) for head in (b"", b"NATS/1.0") * 40_000)
    assert 50_000 < passed < 70_000
    assert not closed


async def test_the_server_closes_the_connection_of_a_flood_while_others_join(bus, broker):
    async def grant(request):
        return JoinReply(error=f"no {request.worker}")

    async def join(**options):
        creds = RawCredentials(broker.credentials.join_creds_text())
        inbox = subjects.join_inbox("run")
        return await nats.connect(
            broker.url, user_credentials=creds, inbox_prefix=inbox, allow_reconnect=False, **options
        )

    async def note(error=None):
        del error

    to, reply = subjects.join("run"), f"{subjects.join_inbox('run')}.x"
    await bus.serve_join(grant)
    flood, honest = await join(error_cb=note), await join()
    with contextlib.suppress(nats.errors.Error):
        for _ in range(100):
            await flood.publish(to, encode(REQUEST), reply)
    await eventually(lambda: flood.is_closed)
    answer = await honest.request(to, encode(REQUEST), timeout=DEADLINE_S)
    assert b"no g0-0" in answer.data
    await asyncio.gather(honest.close(), flood.close())
