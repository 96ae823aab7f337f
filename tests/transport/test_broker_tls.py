"""The embedded broker by TLS: clients verify it, and it renews its certificate as it runs."""

import asyncio
import os
import signal
import ssl

import pytest

from tests.certificates import issued
from tests.deadlines import DEADLINE_S
from tests.waiting import eventually
from torchloom_core.config.services import Broker
from torchloom_core.floor.errors import BrokerError, ConfigError
from torchloom_core.floor.tls import NO_TLS
from torchloom_core.live.transport import ControlClient, NatsBus
from torchloom_core.live.transport.broker import EmbeddedBroker, embedded

pytestmark = pytest.mark.integration


@pytest.fixture
def host(tmp_path):
    return issued(tmp_path / "tls")


@pytest.fixture
async def secure_broker(tmp_path, host):
    _, files = host
    keys = {"certificate": files.certificate, "key": files.key, "ca": files.ca}
    broker = EmbeddedBroker(tmp_path / "state", "run", Broker(**keys))
    await broker.start()
    yield broker
    await broker.stop()


async def refusal(broker, tls, url=""):
    creds = broker.credentials.operator_creds
    with pytest.raises(BrokerError) as caught:
        await ControlClient.connect(url or broker.url, "run", creds, tls)
    assert "\n" not in str(caught.value)
    return str(caught.value).partition(": ")[2]


async def test_a_client_without_the_ca_is_refused_in_one_line(secure_broker, host, tmp_path):
    need = "no NATS server can be reached: the certificate is not signed by"
    wrong = NO_TLS._replace(ca=issued(tmp_path / "other")[1].ca)
    assert await refusal(secure_broker, wrong) == f"{need} the CA in {wrong.ca}"
    trusted = f"{need} a CA that this system trusts: set its ca"
    assert await refusal(secure_broker, NO_TLS) == trusted
    plain = secure_broker.url.replace("tls", "nats")
    assert await refusal(secure_broker, NO_TLS, plain) == trusted


async def test_a_server_without_tls_is_not_sent_the_credentials(broker, host):
    url = broker.url.replace("nats", "tls")
    why = await refusal(broker, host[1], url)
    assert why.endswith("the server offers no TLS, and its URL is tls://")


async def test_a_renewed_certificate_is_served_and_no_connection_is_lost(
    secure_broker, host, monkeypatch
):
    monkeypatch.setattr(embedded, "_HEALTH_S", 0.05)
    authority, _ = host
    creds, tls = secure_broker.credentials, secure_broker.tls
    bus = await NatsBus.connect(secure_broker.url, "run", creds.weaver_creds, tls=tls)
    supervision = asyncio.create_task(secure_broker.supervise())
    before, pid = await served_until(secure_broker), secure_broker.pid
    authority.renew(1000)
    async with asyncio.timeout(DEADLINE_S):
        while await served_until(secure_broker) == before:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert bus.is_connected
    assert bus._link.client.stats["reconnects"] == 0
    assert secure_broker.pid == pid
    supervision.cancel()
    await bus.close()


async def served_until(broker):
    """Return until when the certificate that the server shows is valid."""
    client = await ControlClient.connect(
        broker.url, "run", broker.credentials.operator_creds, broker.tls
    )
    shown = client.link.client._transport._io_writer.get_extra_info("ssl_object")
    until = shown.getpeercert()["notAfter"]
    await client.close()
    return ssl.cert_time_to_seconds(until)


async def test_a_bad_renewed_certificate_stops_no_server_that_runs(
    secure_broker, host, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(embedded, "_RETRY_S", 0.01)
    authority, files = host
    authority.issue(("127.0.0.1",), days=0)
    keys = {"certificate": files.certificate, "key": files.key, "ca": files.ca}
    again = EmbeddedBroker(tmp_path / "state", "run", Broker(**keys))
    await again.start()
    assert again.pid == secure_broker.pid
    assert f"(pid {again.pid}) keeps its certificate: [broker] certificate" in caplog.text
    caplog.clear()
    supervision = asyncio.create_task(again.supervise())
    os.kill(again.pid, signal.SIGKILL)
    await eventually(lambda: again._limited_log.count > 2)
    assert caplog.text.count("ended and cannot be restarted: [broker] certificate") == 1
    authority.issue(("127.0.0.1",), days=9)
    await eventually(again.is_alive)
    supervision.cancel()
    await again.stop()


async def test_a_certificate_for_another_host_stops_the_start(tmp_path, host):
    _, files = issued(tmp_path / "other", "n1")
    keys = {"certificate": files.certificate, "key": files.key, "ca": files.ca}
    broker = EmbeddedBroker(tmp_path / "state", "run", Broker(host="127.0.0.2", **keys))
    with pytest.raises(ConfigError) as caught:
        await broker.start()
    place = f"[broker] certificate: {files.certificate}"
    assert str(caught.value) == f"{place}: the certificate is not for 127.0.0.2"
    await eventually(lambda: not broker.is_alive())
