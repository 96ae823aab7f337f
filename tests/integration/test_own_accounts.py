"""A server of one's own that includes the run's accounts gives each worker rights of its own."""

import asyncio
import json

import nats
import pytest
from nats.aio.client import RawCredentials

from tests.integration.conftest import until
from tests.nats_servers import nats_server
from tests.settled import settle
from torchloom_core.config.services import Broker
from torchloom_core.live.transport.broker import OwnServer
from torchloom_core.live.transport.security import nats_jwt
from torchloom_core.wire import subjects

pytestmark = pytest.mark.integration


@pytest.mark.long
def test_a_stolen_workers_credential_speaks_for_that_worker_alone(start_run, tmp_path):
    (tmp_path / "server").mkdir()
    accounts = tmp_path / "server" / "accounts.conf"
    settings = Broker(url="nats://there", accounts=str(accounts))
    run = start_run("")
    own = OwnServer(run.state, "live", settings)
    with nats_server(tmp_path / "server", "include accounts.conf\n") as (_, address):
        config = f"[broker]\nurl = 'nats://{address}'\naccounts = '{accounts}'\n"
        run.config.write_text(f"[run]\nname = 'live'\n[weaver]\nstate_dir = 'state'\n{config}")
        run.start_weaver()
        assert json.loads((run.state / "join.json").read_text())["enrol"]
        trainer = run.start_light("g0")
        until(lambda: run.torchloom("knob", "set", "x", "2", "--yes").returncode == 0)
        until(lambda: [row["value"] for row in trainer.journal("set")])
        denied = asyncio.run(_denied(address, own.credentials))
        assert denied == [False, True, True, True]


async def _denied(address, credentials):
    """Return which of a worker's acts the server denies: for itself, and for another."""
    seed = nats_jwt.new_seed("user")
    jwt = credentials.worker_jwt("g1-0", 5, nats_jwt.public_key(seed))
    denials, found = [], []

    async def note(error):
        denials.append(str(error))

    client = await nats.connect(
        f"nats://{address}",
        user_credentials=RawCredentials(nats_jwt.creds_text(jwt, seed)),
        inbox_prefix=subjects.inbox_prefix("live", "g1-0", 5),
        error_cb=note,
    )
    for act in (
        client.publish(subjects.telemetry("live", "g1-0", 5)),
        client.publish(subjects.telemetry("live", "g0-0", 1)),
        client.publish(subjects.command("live", "g0-0", 1)),
        client.subscribe(subjects.inbox_prefix("live", "g0-0", 1) + ".>"),
    ):
        denials.clear()
        await act
        await settle(client)
        found.append(any("permissions violation" in denial for denial in denials))
    await client.close()
    return found
