"""A name that is in use stays its worker's, whichever Weaver gave it."""

import logging

import nats
import pytest
from nats.aio.client import RawCredentials

from tests.deadlines import DEADLINE_S
from tests.settled import settle
from torchloom_core.live.transport.security import nats_jwt
from torchloom_core.live.transport.security.credentials import Credentials
from torchloom_core.wire import codec, subjects
from torchloom_core.wire.messages import Hello, JoinReply, JoinRequest, Telemetry

pytestmark = pytest.mark.integration


@pytest.fixture
async def url(start_weaver):
    return await start_weaver()


async def test_the_name_of_a_worker_that_an_earlier_weaver_enrolled_is_refused_to_another_key(
    url, tmp_path
):
    credentials = Credentials.find(tmp_path, "run")
    worker = await _worker(url, credentials, "g0-0", 7)
    person = await nats.connect(url, user_credentials=str(credentials.operator_creds))
    joiner = await nats.connect(
        url,
        user_credentials=RawCredentials(credentials.join_creds_text()),
        inbox_prefix=subjects.join_inbox("run"),
    )
    noticed = await person.subscribe(subjects.out("run", "notice"))
    await settle(person)
    hello = Hello(run="run", worker="g0-0", incarnation=7, group="g0", rank=0, node="n0")
    await worker.publish(subjects.event("run", "g0-0", 7), codec.encode(hello))
    await noticed.next_msg(DEADLINE_S)
    for name, version, error in (
        ("g0-0", 3, "g0-0 is already enrolled by another running process (node n0"),
        ("g1-0", 3, ""),
        ("g2-0", 2, "need wire version 3, was 2: install the same version of torchloom"),
    ):
        key = nats_jwt.public_key(nats_jwt.new_seed("user"))
        request = JoinRequest(run="run", worker=name, incarnation=8, public_key=key, v=version)
        answer = await joiner.request(
            subjects.join("run"), codec.encode(request), timeout=DEADLINE_S
        )
        reply = codec.decode_json(JoinReply, answer.data, "join reply")
        assert reply.error.startswith(error)
        assert bool(reply.jwt) is not bool(error)
    for client in (worker, person, joiner):
        await client.close()


async def test_a_worker_of_an_earlier_version_is_not_registered(url, tmp_path, logged):
    worker = await _worker(url, Credentials.find(tmp_path, "run"), "g0-0", 7)
    hello = Hello(run="run", worker="g0-0", incarnation=7, group="g0", rank=0, node="n0", v=2)
    await worker.publish(subjects.event("run", "g0-0", 7), codec.encode(hello))
    refusal = "g0-0 is not registered, restart its trainer: need wire version 3, was 2: install"
    await logged.eventually(lambda lines: any(line.startswith(refusal) for line in lines))
    await worker.close()


@pytest.mark.long
async def test_a_worker_without_a_hello_is_logged_once_and_published_at_each_tick(
    url, tmp_path, caplog
):
    caplog.set_level(logging.WARNING)
    credentials = Credentials.find(tmp_path, "run")
    weaver = await nats.connect(url, user_credentials=str(credentials.weaver_creds))
    noticed = await weaver.subscribe(subjects.out("run", "notice"))
    await settle(weaver)
    batch = Telemetry(
        run="run", worker="g0-0", incarnation=1, seq=0, state="training", step=1, progress_age_s=0
    )
    worker = await _worker(url, credentials, "g0-0", 1)
    for _ in range(3):
        await worker.publish(subjects.telemetry("run", "g0-0", 1), codec.encode_telemetry(batch))
        await noticed.next_msg(DEADLINE_S)
    logged = [r.getMessage() for r in caplog.records if "has not registered" in r.getMessage()]
    assert logged == ["notice: g0-0 sends telemetry but has not registered (1 so far)"]
    for client in (worker, weaver):
        await client.close()


async def _worker(url, credentials, name, incarnation):
    seed = nats_jwt.new_seed("user")
    jwt = credentials.worker_jwt(name, incarnation, nats_jwt.public_key(seed))
    return await nats.connect(url, user_credentials=RawCredentials(nats_jwt.creds_text(jwt, seed)))
