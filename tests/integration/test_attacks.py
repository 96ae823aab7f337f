"""Attacks on a running Weaver with TLS, as docs/security.md lists them: each is denied."""

import asyncio
import contextlib
import json
import re
import socket
import ssl
import subprocess
import time
import urllib.request

import nats
import nats.errors
import pytest
from nats.aio.client import RawCredentials

from tests.certificates import issued
from tests.deadlines import DEADLINE_S
from tests.integration.conftest import until
from tests.nats_servers import free_ports
from tests.settled import settle
from tests.waiting import eventually
from torchloom_core.config.services import Broker
from torchloom_core.live.transport.broker.binary import find_server
from torchloom_core.live.transport.broker.server_config import ServerConfig
from torchloom_core.live.transport.security import nats_jwt
from torchloom_core.live.transport.security.credentials import Credentials
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import decode_command, decode_json, encode, encode_telemetry
from torchloom_core.wire.commands import Ack
from torchloom_core.wire.messages import (
    Exit,
    Hello,
    JoinReply,
    JoinRequest,
    KnobSpec,
    Note,
    Telemetry,
)

pytestmark = pytest.mark.integration

RUN = "live"
LR = KnobSpec(name="lr", kind="float")


class Attacked:
    """The run, and ways to connect to it."""

    def __init__(self, run, files, metrics_port):
        self.run = run
        self.metrics_port = metrics_port
        self.tls = ssl.create_default_context(cafile=files.ca)
        self.credentials = Credentials.find(run.state, RUN)
        self.url = run.broker["url"]
        self.port = int(self.url.rpartition(":")[2])

    @contextlib.asynccontextmanager
    async def client(self, creds, inbox="_INBOX"):
        client = await nats.connect(
            self.url,
            user_credentials=RawCredentials(creds),
            inbox_prefix=inbox,
            tls=self.tls,
            allow_reconnect=False,
            connect_timeout=DEADLINE_S,
            error_cb=_ignore,
        )
        try:
            yield client
        finally:
            await client.close()

    def joiner(self):
        creds = json.loads((self.run.state / "join.json").read_text())["creds"]
        return self.client(creds, subjects.join_inbox(RUN))

    def worker(self, name, incarnation=1):
        seed = nats_jwt.new_seed("user")
        jwt = self.credentials.worker_jwt(name, incarnation, nats_jwt.public_key(seed))
        inbox = subjects.inbox_prefix(RUN, name, incarnation)
        return self.client(nats_jwt.creds_text(jwt, seed), inbox)

    def person(self):
        return self.client(self.credentials.operator_creds.read_text())

    async def lets_in(self, creds):
        try:
            async with self.client(creds):
                return True
        except nats.errors.Error:
            return False

    async def ask(self, verb, **body):
        async with self.person() as person:
            subject = subjects.control(RUN, "operator", verb)
            answer = await person.request(subject, encode(body), timeout=DEADLINE_S)
            return json.loads(answer.data)

    async def has_registered(self, worker, step=-1):
        async def is_there():
            rows = (await self.ask("status"))["workers"]
            return any(row["worker"] == worker and row.get("step", -1) >= step for row in rows)

        assert await eventually(is_there)


@pytest.fixture(scope="module")
def attacked(start_run, tmp_path_factory):
    _, files = issued(tmp_path_factory.mktemp("tls"))
    (metrics_port,) = free_ports(1)
    keys = "".join(f"{name} = '{getattr(files, name)}'\n" for name in ("certificate", "key", "ca"))
    run = start_run(
        f"[weaver]\nstate_dir = 'state'\ntick_s = 0.1\n[broker]\n{keys}"
        f"[metrics]\naddress = '127.0.0.1:{metrics_port}'\n"
    )
    run.start_weaver()
    attacked = Attacked(run, files, metrics_port)
    yield attacked
    assert run.weaver.poll() is None, run.weaver.errors.read_text()
    assert "Traceback" not in run.weaver.errors.read_text()


async def _ignore(_):
    pass


def identity(worker, incarnation=1):
    return {"run": RUN, "worker": worker, "incarnation": incarnation}


def hello(worker, **changes):
    group = worker.partition("-")[0]
    own = identity(worker) | {"group": group, "rank": 0, "node": f"n-{group}"}
    return Hello(**own | {"knobs": (LR,), "values": {"lr": 0.1}} | changes)


def test_a_connection_without_tls_is_closed(attacked):
    with socket.create_connection(("127.0.0.1", attacked.port)) as plain:
        plain.settimeout(DEADLINE_S)
        assert b'"tls_required":true' in plain.recv(4096)
        plain.sendall(b'CONNECT {"verbose":true,"tls_required":false}\r\nPING\r\n')
        answers = b""
        with contextlib.suppress(ConnectionError):
            while data := plain.recv(4096):
                answers += data
    assert b"PONG" not in answers
    assert b"+OK" not in answers


async def test_credentials_that_have_expired_are_refused(attacked):
    own, past_s = attacked.credentials, int(time.time()) - 10
    creds = {
        own.person_creds_text("alice", nats_jwt.new_seed("user"), "admin", past_s): False,
        own.join_creds_text(past_s): False,
        own.person_creds_text("alice", nats_jwt.new_seed("user"), "admin", past_s + 3600): True,
    }
    assert [await attacked.lets_in(one) for one in creds] == list(creds.values())


async def test_a_join_request_that_is_sent_again_gives_its_sender_no_rights(attacked):
    """The key in the request is the other's; without its seed no server lets the sender in."""
    victim, own = nats_jwt.new_seed("user"), nats_jwt.new_seed("user")
    request = JoinRequest(**identity("replayed-0"), public_key=nats_jwt.public_key(victim))
    async with attacked.joiner() as joiner:
        jwts = []
        for _ in range(2):
            reply = await joiner.request(subjects.join(RUN), encode(request), timeout=DEADLINE_S)
            jwts.append(decode_json(JoinReply, reply.data, "join reply").jwt)
    assert all(jwts)
    assert not await attacked.lets_in(nats_jwt.creds_text(jwts[1], own))
    assert await attacked.lets_in(nats_jwt.creds_text(jwts[1], victim))


async def test_a_flood_in_the_name_of_another_connection_closes_its_own(attacked):
    """The Weaver learns by a header which connection floods it; the server writes that header."""
    request = JoinRequest(**identity("flood-0"), public_key="U")
    async with attacked.worker("good-3") as good, attacked.joiner() as evil:
        named = {"server": good._server_info["server_name"], "id": good._server_info["client_id"]}
        forged = {"Nats-Request-Info": encode(named).decode()}

        async def is_closed():
            with contextlib.suppress(nats.errors.Error):
                for _ in range(100):  # at once: a few a second are allowed
                    await evil.publish(subjects.join(RUN), encode(request), headers=forged)
                await evil.flush(DEADLINE_S)
            return evil.is_closed

        assert await eventually(is_closed)
        await settle(good)
        assert good.is_connected


async def test_a_worker_can_neither_ack_nor_report_for_another(attacked):
    async with attacked.worker("good-0") as good, attacked.worker("evil-0") as evil:
        commands = await good.subscribe(subjects.command(RUN, "good-0", 1))
        for client, name in ((good, "good-0"), (evil, "evil-0")):
            await client.publish(subjects.event(RUN, name, 1), encode(hello(name)))
            await attacked.has_registered(name)
        assert (await attacked.ask("knob.set", knob="lr", value=0.2, worker="good-0"))["ok"]
        command = decode_command((await commands.next_msg(DEADLINE_S)).data)
        before = (await attacked.ask("status"))["malformed"]
        answer = {"command": command.id, "epoch": command.epoch}
        as_evil = Ack(**identity("evil-0"), **answer, status="applied")
        as_good = Ack(**identity("good-0"), **answer, status="failed")
        for ack in (as_evil, as_good):
            await evil.publish(subjects.ack(RUN, "evil-0", 1), encode(ack))
        other = identity("good-0")
        for forged in (
            Exit(**other, status=-9, expected=False),
            Note(**other, kind="fault", fields={"xid": 79}),
            hello("good-0", node="n-evil"),
        ):
            await evil.publish(subjects.event(RUN, "evil-0", 1), encode(forged))
        stalled = Telemetry(**other, seq=1, state="training", step=9, progress_age_s=1e6)
        await evil.publish(subjects.telemetry(RUN, "evil-0", 1), encode_telemetry(stalled))

        async def is_dropped():
            status = await attacked.ask("status")
            return status if status["malformed"] == before + 5 else None

        status = await eventually(is_dropped)
        assert [flight["status"] for flight in status["flights"]] == ["issued"]
        (row,) = [row for row in status["workers"] if row["worker"] == "good-0"]
        assert (row["state"], row["node"], row.get("step", -1)) == ("training", "n-good", -1)
        done = Ack(**identity("good-0"), **answer, status="applied")
        await good.publish(subjects.ack(RUN, "good-0", 1), encode(done))

        async def is_done():
            return not (await attacked.ask("status"))["flights"]

        assert await eventually(is_done)


async def test_a_worker_of_an_earlier_or_a_later_wire_version_is_not_registered(attacked):
    async with attacked.worker("old-0") as client:
        for version in (2, 4):
            data = encode(hello("old-0", v=version))
            await client.publish(subjects.event(RUN, "old-0", 1), data)
        await settle(client)
        refused = "old-0 is not registered, restart its trainer: need wire version 3"
        assert await eventually(lambda: refused in attacked.run.weaver.errors.read_text())
    rows = (await attacked.ask("status"))["workers"]
    assert "old-0" not in {row["worker"] for row in rows}
    async with attacked.joiner() as joiner:
        for version in (2, 4):
            key = nats_jwt.public_key(nats_jwt.new_seed("user"))
            request = JoinRequest(**identity("old-0"), public_key=key, v=version)
            reply = await joiner.request(subjects.join(RUN), encode(request), timeout=DEADLINE_S)
            assert "need wire version 3" in decode_json(JoinReply, reply.data, "join reply").error


async def test_no_header_of_a_worker_deletes_or_hides_a_report(attacked):
    creds = attacked.credentials.weaver_creds.read_text()
    note = Note(**identity("good-1"), kind="kept")
    async with (
        attacked.client(creds) as weaver,
        attacked.worker("good-1") as good,
        attacked.worker("evil-1") as evil,
    ):
        streams = weaver.jetstream()

        async def kept():
            found = await streams.stream_info("TL_REPORT_live", subjects_filter=GOOD)
            return (found.state.subjects or {}).get(GOOD, 0)

        await good.publish(GOOD, encode(note))
        assert await eventually(kept) == 1
        for headers in (
            {"Nats-Rollup": "all"},
            {"Nats-Rollup": "sub"},
            {"Nats-TTL": "1s"},
            {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": GOOD},
            {"Nats-Schedule-Rollup": "sub"},
            {"Nats-Incr": "5"},
            {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
            {"Nats-Expected-Last-Subject-Sequence": "0"},
            {"Nats-Msg-Id": "c1:1:applied:"},
        ):
            own = encode(Note(**identity("evil-1"), kind="x"))
            await evil.publish(subjects.event(RUN, "evil-1", 1), own, headers=headers)
        await settle(evil)
        last = Note(**identity("evil-1"), kind="last")
        before = (await streams.stream_info("TL_REPORT_live")).state.last_seq
        await evil.publish(subjects.event(RUN, "evil-1", 1), encode(last))

        async def has_arrived():
            return (await streams.stream_info("TL_REPORT_live")).state.last_seq > before

        assert await eventually(has_arrived)
        assert await kept() == 1


GOOD = subjects.event(RUN, "good-1", 1)


async def test_a_worker_that_takes_the_message_ids_of_anothers_acks_hides_none(attacked):
    """The server drops a second report with one id, whichever worker sent the first."""
    trainer = attacked.run.start_light("g0")
    await attacked.has_registered("g0-0")
    epoch = (await attacked.ask("status"))["epoch"]
    async with attacked.worker("evil-3") as evil:
        own = encode(Ack(**identity("evil-3"), command="c1", epoch=1, status="applied"))
        for number in range(1, 20):
            for mark in ("", "0" * 16):
                taken = {"Nats-Msg-Id": f"c{epoch}.{number}:{epoch}:applied:{mark}"}
                await evil.publish(subjects.ack(RUN, "evil-3", 1), own, headers=taken)
        await settle(evil)
    assert (await attacked.ask("knob.set", knob="x", value=2, worker="g0-0", sure=True))["ok"]

    async def is_done():
        return not (await attacked.ask("status"))["flights"]

    assert await eventually(is_done)
    assert [row["value"] for row in trainer.journal("set")] == [2]


async def test_a_message_that_is_too_large_ends_its_senders_connection_alone(attacked):
    async with attacked.worker("evil-2") as evil, attacked.worker("good-2") as good:
        evil._max_payload = 1 << 30
        with contextlib.suppress(nats.errors.Error, ConnectionError):
            await evil.publish(subjects.telemetry(RUN, "evil-2", 1), b"x" * ((1 << 20) + 1))
            await evil.flush(DEADLINE_S)
        assert await eventually(lambda: evil.is_closed)
        await good.publish(subjects.event(RUN, "good-2", 1), encode(hello("good-2")))
        await attacked.has_registered("good-2")


def test_connections_to_the_metrics_that_say_nothing_or_break_off_stop_no_scrape(attacked):
    where = "127.0.0.1", attacked.metrics_port
    idle = [socket.create_connection(where) for _ in range(100)]
    for data in (b"\x16\x03\x01" * 100, b"GET " + b"/" * 70_000, b"POST /metrics HTTP/1.1\r\n\r\n"):
        with socket.create_connection(where) as broken:
            broken.sendall(data)
    with urllib.request.urlopen(f"http://{where[0]}:{where[1]}/metrics", timeout=DEADLINE_S) as got:
        assert b"torchloom_weaver_leader" in got.read()
    until(lambda: sum(_is_closed(one) for one in idle) >= 100 - 32)
    for one in idle:
        one.close()


def _is_closed(one):
    one.setblocking(False)
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


async def test_every_revocation_is_on_record_with_its_admin(attacked):
    assert (await attacked.ask("access.revoke", kind="worker", name="gone-0"))["ok"]
    text = "revoked the credentials of the worker gone-0"

    def recorded():
        return [one for _, one in attacked.run.records("request") if text in str(one)]

    (request,) = await eventually(recorded)
    assert request["by"] == "operator"


def test_no_key_or_password_is_in_a_log_or_on_record(attacked):
    """Whoever reads the trajectory or a log has no credentials by it."""
    secret = re.compile(rb"S[UAO][A-Z2-7]{56}|eyJ0eXAiOi[A-Za-z0-9_.-]{20,}")
    state = attacked.run.state
    files = [path for path in (state / "trajectory").rglob("*") if path.is_file()]
    files += [attacked.run.weaver.errors, state / "broker" / "nats.log"]
    assert len(files) > 3
    assert secret.search((state / "join.json").read_bytes())
    assert not [path for path in files if secret.search(path.read_bytes())]


def test_a_server_without_the_secret_joins_no_cluster(tmp_path):
    """A host that reaches the port for routes sends what a server sends, and is cut off."""
    port, *others = free_ports(3)
    peers = tuple(f"127.0.0.1:{one}" for one in (port, *others))
    config = ServerConfig(tmp_path, RUN, Broker(port=port, peers=peers))
    (tmp_path / "conf").write_text(config.text(port, Credentials.ensure(tmp_path, RUN)))
    with subprocess.Popen([find_server(), "-c", tmp_path / "conf"]) as server:
        try:
            for line in (
                b"CONNECT {}\r\nPING\r\n",
                b'CONNECT {"user":"torchloom","pass":"guessed","name":"evil"}\r\nPING\r\n',
            ):
                route = until(lambda: socket.create_connection(("127.0.0.1", port + 2000)))
                with route:
                    route.settimeout(DEADLINE_S)
                    route.sendall(line)
                    answers = b"".join(iter(lambda r=route: _received(r), b""))
                assert b"Authorization Violation" in answers
        finally:
            server.kill()


def _received(route):
    try:
        return route.recv(4096)
    except ConnectionError:
        return b""


def test_the_servers_own_state_is_served_on_loopback_only(attacked):
    assert attacked.run.broker["monitor_url"].startswith("http://127.0.0.1:")


def test_credentials_and_certificates_of_another_run_are_refused(attacked, tmp_path):
    other = Credentials.ensure(tmp_path, RUN)
    assert not asyncio.run(attacked.lets_in(other.weaver_creds.read_text()))
    wrong = ssl.create_default_context(cafile=issued(tmp_path / "tls")[1].ca)
    with socket.create_connection(("127.0.0.1", attacked.port)) as plain:
        plain.recv(4096)
        with pytest.raises(ssl.SSLError):
            wrong.wrap_socket(plain, server_hostname="127.0.0.1")
