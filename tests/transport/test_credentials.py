"""Keys that outlive the version that made them, and names in credentials."""

import json

import nats
import nats.errors
import pytest
from nats.aio.client import RawCredentials

from torchloom_core.floor.errors import StateError
from torchloom_core.live.transport.broker import EmbeddedBroker
from torchloom_core.live.transport.security import nats_jwt
from torchloom_core.live.transport.security.credentials import Credentials


def keys_of(state):
    return json.loads((state / "broker" / "keys" / "keys.json").read_text())


def write_keys(state, keys):
    (state / "broker" / "keys" / "keys.json").write_text(json.dumps(keys))


async def connects(broker, creds):
    try:
        client = await nats.connect(
            broker.url,
            user_credentials=RawCredentials(creds),
            max_reconnect_attempts=1,
            reconnect_time_wait=0.1,
            error_cb=_ignore,
        )
    except nats.errors.NoServersError:
        return False
    await client.close()
    return True


async def test_keys_of_an_older_version_are_retained_and_completed(broker, tmp_path):
    state = tmp_path / "state"
    seed = nats_jwt.new_seed("user")
    jwt = broker.credentials.worker_jwt("g0-0", 1, nats_jwt.public_key(seed))
    worker = nats_jwt.creds_text(jwt, seed)
    old = {name: key for name, key in keys_of(state).items() if name not in {"people", "operators"}}
    write_keys(state, old)
    with pytest.raises(StateError, match=r"these are of an earlier version; start `torchloom "):
        Credentials.find(state, "run")
    again = EmbeddedBroker(state, "run")
    await again.start()
    assert {name: keys_of(state)[name] for name in old} == old
    assert await connects(again, worker)
    assert await connects(again, again.credentials.operator_creds.read_text())
    await again.stop()


async def test_a_new_key_for_people_takes_their_credentials_back(broker, tmp_path):
    state = tmp_path / "state"
    alice = broker.credentials.person_creds_text("alice", nats_jwt.new_seed("user"))
    assert await connects(broker, alice)
    write_keys(state, {**keys_of(state), "operators": ""})
    again = EmbeddedBroker(state, "run")
    await again.start()
    assert not await connects(again, alice)
    assert await connects(again, again.credentials.operator_creds.read_text())
    await again.stop()


def test_the_name_in_credentials_is_found(tmp_path):
    credentials = Credentials.ensure(tmp_path, "run")
    seed = nats_jwt.new_seed("user")
    assert nats_jwt.user_name(credentials.person_creds_text("alice", seed)) == "alice"
    assert nats_jwt.user_name(credentials.operator_creds.read_text()) == "operator"


@pytest.mark.parametrize(
    "text",
    ["", "NATS USER JWT", "----BEGIN NATS USER JWT----\na.!!.c\n", "NATS USER JWT-\na.e30.c"],
)
def test_credentials_without_a_name_have_none(text):
    assert nats_jwt.user_name(text) == ""


async def _ignore(_):
    pass
