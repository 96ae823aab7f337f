"""Credentials are revoked while the run goes on, and stay void after a restart."""

import asyncio
import contextlib
import json

import nats
import nats.errors
import pytest
from nats.aio.client import RawCredentials

from tests.deadlines import DEADLINE_S
from tests.waiting import until
from torchloom_core.live.transport.security import nats_jwt
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import decode_json, encode
from torchloom_core.wire.messages import JoinReply, JoinRequest

pytestmark = pytest.mark.integration

CONFIG = """
[weaver]
state_dir = "state"
tick_s = 0.1

[join]
names = ["g*-*"]
expires_s = 3600
cut_after_s = 2
"""


@pytest.fixture(scope="module")
def run(start_run):
    run = start_run(CONFIG)
    run.start_weaver()
    return run


def connects(run, creds):
    """Return whether the server lets these credentials in."""

    async def connect():
        client = await nats.connect(
            run.broker["url"],
            user_credentials=RawCredentials(creds),
            max_reconnect_attempts=1,
            reconnect_time_wait=0.1,
            error_cb=_ignore,
        )
        await client.close()

    try:
        asyncio.run(connect())
    except nats.errors.NoServersError:
        return False
    return True


async def _ignore(error):
    pass


def joiner(run):
    return json.loads((run.state / "join.json").read_text())["creds"]


def done(run, *words):
    result = run.torchloom("credentials", *words)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_persons_revoked_credentials_are_void_and_others_are_not(run):
    done(run, "create", "alice")
    done(run, "create", "bo", "--role", "viewer")
    alice, bo = ((run.folder / f"{name}.creds").read_text() for name in ("alice", "bo"))
    assert connects(run, alice)
    assert done(run, "revoke", "alice") == "revoked 1 credentials of alice\n"
    until(lambda: not connects(run, alice))
    assert connects(run, bo)
    assert "bo.creds" not in done(run, "list")
    refused = run.torchloom("credentials", "list", "--creds", "bo.creds")
    assert "need credentials of an admin, these are of the viewer bo" in refused.stderr
    run.kill_weaver()
    run.start_weaver()
    assert not connects(run, alice)
    again = run.torchloom("credentials", "revoke", "alice")
    assert "revoked 0 credentials of alice: those they had were revoked before" in again.stdout


@pytest.mark.long
def test_a_revoked_worker_is_cut_and_may_not_join_again_until_it_is_undone(run):
    trainer = run.start_light("g1", "--steps", "1000000")
    run.training("g1")
    done(run, "revoke", "g1-0", "--worker")
    until(lambda: "its credentials were revoked" in run.weaver.errors.read_text())
    assert trainer.process.poll() is None
    done(run, "revoke", "g1-0", "--worker", "--undo")
    run.training("g1")


def test_a_name_that_the_config_does_not_have_gets_no_credentials(run):
    run.start_light("stranger", "--steps", "1000000")
    need = "need a worker name of [join] names (g*-*), was stranger-0"
    until(lambda: need in run.weaver.errors.read_text())


def test_new_credentials_for_joining_replace_the_revoked_ones(run):
    before = joiner(run)
    done(run, "revoke", "--join")
    until(lambda: not connects(run, before))
    assert connects(run, joiner(run))


def test_a_worker_that_floods_the_weaver_is_named_and_then_cut(run):
    asyncio.run(flood(run, "g9-0"))
    named = "g9-0 sends more than it may"
    cut = "g9-0 went on sending more than it may: revoked the credentials"
    for text in (named, cut):
        until(lambda text=text: text in run.weaver.errors.read_text())


async def flood(run, worker):
    """Enrol, and send telemetry for as long as the server takes it."""
    seed, one = nats_jwt.new_seed("user"), {"run": run.name, "worker": worker, "incarnation": 1}
    request = JoinRequest(**one, public_key=nats_jwt.public_key(seed))
    options = {"error_cb": _ignore, "allow_reconnect": False}
    inbox = subjects.join_inbox(run.name)
    url, creds = run.broker["url"], RawCredentials(joiner(run))
    client = await nats.connect(url, user_credentials=creds, inbox_prefix=inbox, **options)
    reply = await client.request(subjects.join(run.name), encode(request), timeout=DEADLINE_S)
    await client.close()
    jwt = decode_json(JoinReply, reply.data, "reply").jwt
    creds = RawCredentials(nats_jwt.creds_text(jwt, seed))
    client = await nats.connect(url, user_credentials=creds, **options)
    async with asyncio.timeout(DEADLINE_S):
        while not client.is_closed:
            with contextlib.suppress(nats.errors.Error):
                for _ in range(200):
                    await client.publish(subjects.telemetry(*one.values()), b"x")
                await client.flush()
