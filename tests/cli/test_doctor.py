"""Each check of ``torchloom doctor`` is tried against a set-up that is broken in its way."""

import asyncio
import base64
import os
import socket
import threading
import time
from pathlib import Path

import msgspec
import nats
import pytest

from tests.certificates import issued
from tests.nats_servers import nats_server
from tests.small_disk import fill, small_disk
from torchloom_core.cli.doctor import (
    collectives,
    credentials,
    disk,
    ports,
    programs,
    servers,
    start,
    torchft,
)
from torchloom_core.cli.doctor.finding import Host
from torchloom_core.cli.doctor_command import examine
from torchloom_core.config.loading import parse
from torchloom_core.live.transport import NatsBus
from torchloom_core.live.transport.security.credentials import Credentials
from torchloom_core.live.transport.security.nats_jwt import creds_text, new_seed, public_key, sign
from torchloom_core.wire.codec import encode
from torchloom_core.wire.messages import SCHEMA_VERSION, JoinFile, JoinReply

LIGHTHOUSE = {"TORCHFT_LIGHTHOUSE": "http://127.0.0.1:1"}


def training(join=None, path="join.json", workers=4, **environment):
    return Host(environment=environment, workers=workers, join_path=Path(path), join=join)


def weavers(text="", workers=4, folder=None, **environment):
    place = f"[weaver]\nstate_dir = '{folder}'\n" if folder else ""
    config = parse(place + text)
    path = Path(config.weaver.state_dir) / "join.json"
    return Host(environment=environment, workers=workers, join_path=path, config=config)


def only(findings):
    (finding,) = findings
    return finding


def levels(findings):
    return [finding.level for finding in findings]


def test_a_nats_server_that_is_none_is_a_problem():
    host = weavers(TORCHLOOM_NATS_SERVER="/bin/nothing")
    assert "need a program that can be run" in only(programs.nats_server(host)).text


def test_a_package_that_is_too_old_or_missing_is_a_problem(monkeypatch):
    assert only(programs.torch(training())).level == "ok"
    monkeypatch.setattr(programs, "oldest_of", lambda name: "9999.1")
    finding = only(programs.torch(training()))
    assert finding.level == "problem"
    assert finding.change == 'pip install "torch>=9999.1"'
    assert only(programs.torchft(training(**LIGHTHOUSE))).level == "problem"


def test_the_oldest_versions_are_those_of_the_package():
    assert programs.oldest_of("torch") != "0"
    assert programs.oldest_of("torchft-nightly").startswith("20")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[policies.nope]\n", "policies.nope: no policy has this name"),
        ("[predictors.trend]\nmetrics = 3\n", "predictors.trend"),
    ],
)
def test_what_a_weaver_refuses_at_its_start_is_a_problem(text, fault):
    finding = only(start.plugins(weavers(text)))
    assert finding.level == "problem"
    assert fault in finding.text
    assert levels(start.plugins(weavers())) == ["ok"]


def test_a_cluster_without_shared_keys_is_a_problem(tmp_path):
    peers = "[broker]\nhost = '127.0.0.1'\nport = 4222\npeers = [{}]\n".format(
        ", ".join(f"'127.0.0.{number}:4222'" for number in (1, 2, 3))
    )
    host = weavers(peers, folder=tmp_path)
    assert "torchloom broker keys" in only(start.shared_keys(host)).text
    assert not list(credentials.keys(host))
    Credentials.ensure(tmp_path, "run")
    assert not list(start.shared_keys(host))


def test_a_port_of_another_program_is_a_problem():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        text = f"[broker]\nport = {port}\n[dashboard]\nport = 0\n"
        finding = only(ports.ports(weavers(text)))
        assert (finding.level, finding.change) == (
            "problem",
            "free it, or set broker.port to another",
        )
        assert f"pid {os.getpid()}" in finding.text
        assert "outgoing connection" in only(ports.outgoing(weavers(text))).text
        metrics = f"[dashboard]\nport = 0\n[metrics]\naddress = '127.0.0.1:{port}'\n"
        assert "set metrics.address" in only(ports.ports(weavers(metrics))).change
    assert only(ports.ports(weavers(text))).level == "ok"


def test_an_address_of_another_host_is_a_problem():
    text = "[broker]\nhost = '192.0.2.7'\nport = 4222\n[dashboard]\nport = 0\n"
    assert "no address of this host" in only(ports.ports(weavers(text))).text


@pytest.mark.integration
def test_the_nats_server_needs_jetstream_and_room_for_a_message(tmp_path):
    with nats_server(tmp_path / "small", "max_payload: 1000\n") as (_, address):
        finding = only(servers.nats_servers(training(JoinFile(url=f"nats://{address}", run="r"))))
        assert "need max_payload >= 1048576, was 1000" in finding.text
    closed = only(servers.nats_servers(training(JoinFile(url=f"nats://{address}", run="r"))))
    assert f"{address} is not reached: Connection refused" in closed.text


@pytest.mark.parametrize(
    ("greeting", "fault"),
    [
        (b'INFO {"version": "2.9.1", "jetstream": true}\r\n', "need nats-server >= 2.11, was 2.9"),
        (b'INFO {"version": "2.15.1"}\r\n', "need JetStream, was off"),
        (b"HTTP/1.1 400 Bad Request\r\n", "no nats-server answers there"),
    ],
)
def test_another_server_at_the_brokers_address_is_a_problem(greeting, fault):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"nats://127.0.0.1:{server.getsockname()[1]}"
        findings = iter(servers.nats_servers(training(JoinFile(url=url, run="r"))))
        client = _greet(server, greeting)
        finding = only(findings)
        client.join()
    assert finding.level == "problem"
    assert fault in finding.text


def _greet(server, greeting):
    def serve():
        link, _ = server.accept()
        with link:
            link.sendall(greeting)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


async def test_wire_version_and_clock_are_compared_with_the_running_weavers(broker):
    join = JoinFile(url=broker.url, run="run", creds=broker.credentials.join_creds_text())

    async def found(join):
        return await asyncio.to_thread(list, servers.weaver(training(join)))

    assert only(await found(join)).text == "no Weaver of run run answers"

    bus = await NatsBus.connect(broker.url, "run", broker.credentials.weaver_creds)
    await bus.serve_join(None)  # an empty request reaches no handler
    findings = await found(join)
    own = f"[broker]\nurl = '{broker.url}'\ncreds = '{broker.credentials.weaver_creds}'\n"
    standby = await asyncio.to_thread(list, servers.weaver(weavers(own)))
    await bus.close()
    assert levels(standby) == levels(findings)
    assert [(one.check, one.level) for one in findings] == [("wire version", "ok"), ("clock", "ok")]

    link = nats.NATS()
    await link.connect(broker.url, user_credentials=str(broker.credentials.weaver_creds))
    other = JoinReply(v=SCHEMA_VERSION + 1, ts_ns=time.time_ns() - 3 * 10**9)

    async def answer(msg):
        await msg.respond(encode(other))

    await link.subscribe("tl.join.run", cb=answer)
    await link.flush()
    version, clock = await found(join)
    await link.close()
    assert f"need the Weaver's wire version, {SCHEMA_VERSION + 1}" in version.text
    assert (clock.level, clock.text[:24]) == ("warning", "need at most 1 s, was 3.")

    stranger = msgspec.structs.replace(join, creds=_creds(new_seed("user")))
    assert "the server refuses join.json" in only(await found(stranger)).text


def _creds(seed, **claims):
    issued = sign(new_seed("account"), public_key(seed), "w", {"type": "user"}, 0)
    head, body, signature = issued.split(".")
    if claims:
        table = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        text = base64.urlsafe_b64encode(msgspec.json.encode(table | claims))
        body = text.decode().rstrip("=")
    return creds_text(f"{head}.{body}.{signature}", seed)


def test_credentials_that_others_can_read_or_that_are_over_are_problems(tmp_path):
    path = tmp_path / "join.json"
    path.write_text("x")
    assert only(credentials.join_file(training(path=path))).change == "copy it again"
    path.chmod(0o644)
    over = JoinFile(url="nats://h", run="r", creds=_creds(new_seed("user"), exp=1))
    mode, expiry = credentials.join_file(training(over, path))
    assert (mode.level, mode.change) == ("problem", f"chmod 600 {path}")
    assert (expiry.level, expiry.text) == ("problem", "the credentials expired")
    path.chmod(0o600)
    soon = _creds(new_seed("user"), exp=int(time.time()) + 3600)
    join = msgspec.structs.replace(over, creds=soon)
    assert levels(credentials.join_file(training(join, path))) == ["ok", "warning"]
    damaged = msgspec.structs.replace(over, creds="nothing")
    assert "it has no user JWT" in list(credentials.join_file(training(damaged, path)))[1].text


def test_a_certificate_that_clients_would_refuse_is_a_problem(tmp_path):
    _, files = issued(tmp_path / "tls", "127.0.0.1")
    own = f"certificate = '{files.certificate}'\nkey = '{files.key}'\n"
    text = f"[broker]\n{own}ca = '{files.ca}'\n"
    assert levels(credentials.certificates(weavers(text))) == ["ok", "ok"]
    Path(files.key).chmod(0o644)
    assert levels(credentials.certificates(weavers(text))) == ["ok", "problem"]
    other = text.replace("[broker]", "[broker]\nhost = '10.0.0.5'")
    assert "is not for 10.0.0.5" in only(credentials.certificates(weavers(other))).text


@pytest.mark.integration
def test_a_server_of_another_authority_is_a_problem(tmp_path):
    _, files = issued(tmp_path / "tls", "127.0.0.1")
    _, others = issued(tmp_path / "other", "127.0.0.1")
    tls = f"tls {{ cert_file: '{files.certificate}', key_file: '{files.key}' }}\n"
    with nats_server(tmp_path / "nats", tls) as (_, address):
        join = JoinFile(url=f"tls://{address}", run="r", ca=Path(files.ca).read_text())
        assert only(servers.weaver(training(join))).text == "no Weaver of run r answers"
        join = msgspec.structs.replace(join, ca=Path(others.ca).read_text())
        assert "is not signed by a CA" in only(servers.weaver(training(join))).text


async def test_damaged_or_public_keys_of_the_built_in_server_are_problems(broker, tmp_path):
    host = weavers(folder=tmp_path / "state")
    assert set(levels(credentials.keys(host))) == {"ok"}
    keys = tmp_path / "state" / "broker" / "keys"
    (keys / "operator.creds").chmod(0o640)
    assert levels(credentials.keys(host)).count("problem") == 1
    (keys / "keys.json").write_text("{}")
    assert "the keys are damaged" in only(credentials.keys(host)).text


def test_a_server_of_ones_own_needs_credentials_of_its_own_for_workers(tmp_path):
    source = tmp_path / "torchloom.toml"
    text = f"[broker]\nurl = 'nats://me:secret@h'\ncreds = '{tmp_path}/none.creds'\n"
    source.write_text(text)
    source.chmod(0o644)
    host = msgspec.structs.replace(weavers(text), source=source)
    creds, workers, password = credentials.own_server(host)
    assert "cannot be read: No such file" in creds.text
    assert "the Weaver's own rights" in workers.text
    assert password.change == f"chmod 600 {source}"


@pytest.mark.integration
def test_a_disk_that_is_small_full_or_slow_is_named(tmp_path, monkeypatch):
    with small_disk(tmp_path / "disk", 1100) as folder:
        host = weavers(folder=folder / "state", workers=1000)
        assert only(disk.room(host)).level == "warning"
        fill(folder / "big", leave_bytes=1000 << 20)
        assert "need 1.1 GB, was 1.0" in only(disk.room(host)).text
        assert only(disk.sync(host)).level == "ok"
        monkeypatch.setattr(os, "fsync", lambda _: time.sleep(0.03))
        assert only(disk.sync(host)).level == "warning"


def test_a_state_folder_of_another_user_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    assert "cannot write there" in only(disk.room(weavers(folder=tmp_path))).text


def test_a_lighthouse_that_is_not_reached_or_is_another_hosts_is_a_problem():
    assert "Connection refused" in only(torchft.lighthouse(training(**LIGHTHOUSE))).text
    join = JoinFile(url="nats://10.0.0.5:4222", run="r")
    assert "the Weaver is another" in only(torchft.lighthouse(training(join, **LIGHTHOUSE))).text
    wrong = training(TORCHFT_LIGHTHOUSE="10.0.0.5:29510")
    assert "need http://HOST:PORT" in only(torchft.lighthouse(wrong)).text
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert only(torchft.lighthouse(training(TORCHFT_LIGHTHOUSE=url))).level == "ok"


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({}, "a restart of the lighthouse ends the trainers"),
        ({"TORCHFT_QUORUM_RETRIES": "many"}, "need a whole number, was 'many'"),
        ({"TORCHFT_TIMEOUT_SEC": "1.5"}, "TORCHFT_TIMEOUT_SEC: need whole seconds, was '1.5'"),
        ({"TORCHFT_QUORUM_TIMEOUT_SEC": "10"}, "need TORCHFT_QUORUM_TIMEOUT_SEC >= TORCHFT_TIM"),
    ],
)
def test_torchfts_settings_that_do_not_fit_are_named(settings, fault):
    host = training(**LIGHTHOUSE, **settings)
    findings = [*torchft.retries(host), *torchft.timeouts(host)]
    assert any(fault in finding.text for finding in findings if finding.level != "ok")


def test_the_lighthouses_times_have_to_fit_each_other():
    late = weavers("[lighthouse]\nheartbeat_timeout_s = 0.5\nquorum_tick_s = 0.1\n")
    assert "10 quorum_tick_s" in only(torchft.lighthouse_times(late)).text
    short = weavers("[lighthouse]\njoin_timeout_s = 1\n")
    assert only(torchft.lighthouse_times(short)).change == "set join_timeout_s = 5"
    assert only(torchft.lighthouse_times(weavers("[lighthouse]\n"))).level == "ok"


@pytest.mark.parametrize(
    ("variable", "value", "is_there"),
    [
        ("GLOO_SOCKET_IFNAME", "lo", True),
        ("GLOO_SOCKET_IFNAME", "l", False),
        ("NCCL_SOCKET_IFNAME", "l", True),
        ("NCCL_SOCKET_IFNAME", "=l", False),
        ("NCCL_SOCKET_IFNAME", "^docker,virbr", True),
        ("TP_SOCKET_IFNAME", "ib7", False),
    ],
)
def test_an_interface_has_to_exist(variable, value, is_there):
    finding = only(collectives.interfaces(training(**{variable: value})))
    assert (finding.level == "ok") == is_there, finding


def test_loopback_is_a_problem_where_the_weaver_is_on_another_host():
    join = JoinFile(url="nats://10.0.0.5:4222", run="r")
    finding = only(collectives.interfaces(training(join, GLOO_SOCKET_IFNAME="lo")))
    assert "reaches no other host" in finding.text


def test_settings_that_harm_are_named():
    wrong = training(NCCL_BLOCKING_WAIT="1", NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1")
    assert [finding.text.split(":")[0] for finding in collectives.harmful(wrong)] == [
        "NCCL_BLOCKING_WAIT=1",
        "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1",
    ]
    assert only(collectives.harmful(training(NCCL_P2P_DISABLE="1"))).level == "ok"


def test_a_check_that_the_system_refuses_is_a_problem_and_the_others_go_on():
    def refused(_):
        raise PermissionError(13, "Permission denied", "/secret")

    findings = list(examine(training(), [refused, collectives.harmful]))
    assert levels(findings) == ["problem", "ok"]
    assert findings[0].text == "cannot be checked: /secret Permission denied"
