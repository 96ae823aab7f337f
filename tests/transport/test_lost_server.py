"""A server that hangs is left by all connections of a Weaver soon, also by TLS."""

import asyncio
import signal

import pytest

from tests.certificates import issued
from tests.nats_servers import nats_server
from tests.waiting import eventually
from torchloom_core.live.transport.connection import Connection

pytestmark = [pytest.mark.integration, pytest.mark.long]
TLS = 'tls {{ cert_file: "{certificate}", key_file: "{key}" }}\n'


@pytest.fixture
def servers(tmp_path):
    files = issued(tmp_path / "tls")[1]
    tls = TLS.format(certificate=files.certificate, key=files.key)
    with (
        nats_server(tmp_path / "a", tls) as (first, one),
        nats_server(tmp_path / "b", tls) as (_, other),
    ):
        yield first, (f"tls://{one}", f"tls://{other}"), files._replace(certificate="", key="")
        first.send_signal(signal.SIGCONT)


async def test_connections_leave_a_server_that_hangs_once_one_of_them_has_noticed_it(servers):
    first, urls, tls = servers
    common = {"creds": None, "inbox_prefix": "_INBOX", "tls": tls, "in_order": True}
    link = await Connection.open(",".join(urls), name="link", **common)
    watch = await Connection.open(",".join(urls), name="watch", ping_every_s=1, **common)
    watch.others = lambda: [link]
    assert urls[0].endswith(link._server)
    first.send_signal(signal.SIGSTOP)
    await eventually(lambda: urls[1].endswith(link._server) and link.is_connected)
    await eventually(lambda: urls[1].endswith(watch._server) and watch.is_connected)
    await asyncio.gather(link.close(), watch.close())
