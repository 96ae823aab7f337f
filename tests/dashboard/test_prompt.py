"""Who connects and does not come to the point is let go, and takes no place from the others."""

import asyncio
import asyncio.constants
import contextlib
import errno
import shutil
import socket
import ssl
import subprocess
from urllib.parse import urlsplit

import pytest

from tests.dashboard.house import open_house, sees
from tests.waiting import eventually, soon
from torchloom_core.floor import web_server
from torchloom_core.floor.tls import TlsFiles, server_context

HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
HALF_A_HELLO = bytes.fromhex("1603010200010001fc0303")
GONE = (ConnectionResetError, asyncio.IncompleteReadError)


@pytest.fixture(autouse=True)
def soon_over(monkeypatch):
    monkeypatch.setattr(web_server, "PROMPT_S", 0.2)


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """Return what serves a dashboard by TLS."""
    if shutil.which("openssl") is None:
        pytest.skip("need openssl, to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost"
    command = ["openssl", *words.split(), "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    return {"tls": server_context(TlsFiles(str(certificate), str(key)))}


@pytest.fixture(autouse=True)
def patient_asyncio(monkeypatch):
    """It is ours to end a handshake, not asyncio's."""
    monkeypatch.setattr(asyncio.constants, "SSL_HANDSHAKE_TIMEOUT", 1e6)


async def come(house, said, **tls):
    where = urlsplit(house._url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port, **tls)
    writer.write(said)
    return reader, writer


@pytest.mark.parametrize("said", [b"", b"G", HALF], ids=["nothing", "a letter", "half"])
async def test_who_does_not_say_all_of_a_request_is_let_go(tmp_path, said):
    async with open_house(tmp_path) as house:
        page = await house.enter()
        reader, writer = await come(house, said)
        with pytest.raises(GONE):
            await soon(reader.readexactly(1))
        writer.close()
        house.change("goes on")
        await sees(page, lambda update: update.get("run", {}).get("trouble") == "goes on")


async def test_so_is_who_has_had_an_answer_and_says_half_of_another_request(tmp_path):
    async with open_house(tmp_path) as house:
        reader, writer = await come(house, HALF + b"\r\n")
        await soon(reader.readuntil(b"printed"))
        writer.write(HALF)
        with pytest.raises(GONE):
            await soon(reader.readexactly(10_000))
        writer.close()


@pytest.mark.parametrize(("limit", "kept"), [("_MOST_CONNECTIONS", 7), ("_MOST_ARRIVING", 8)])
async def test_who_comes_has_the_place_of_who_waited_longest_and_asked_nothing(
    tmp_path, monkeypatch, limit, kept
):
    monkeypatch.setattr(web_server, limit, 8)
    monkeypatch.setattr(web_server, "PROMPT_S", 1e6)
    async with open_house(tmp_path) as house:
        page = await house.enter()
        crowd = [await come(house, HALF) for _ in range(40)]
        for reader, _ in crowd[:-kept]:
            with pytest.raises(GONE):
                await soon(reader.readexactly(1))
        reader, writer = crowd[-1]
        writer.write(b"\r\n")
        assert b" 401 " in await soon(reader.readline())
        house.change("goes on")
        await sees(page, lambda update: update.get("run", {}).get("trouble") == "goes on")
        for _, other in crowd:
            other.close()


async def test_who_is_there_and_has_asked_for_something_keeps_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(web_server, "_MOST_CONNECTIONS", 2)
    monkeypatch.setattr(web_server, "PROMPT_S", 1e6)
    async with open_house(tmp_path) as house:
        pages = [await house.enter() for _ in range(2)]
        reader, writer = await come(house, HALF)
        with pytest.raises(GONE):
            await soon(reader.readexactly(1))
        writer.close()
        house.change("goes on")
        for page in pages:
            await sees(page, lambda update: update.get("run", {}).get("trouble") == "goes on")


async def test_a_dashboard_without_a_file_left_takes_who_comes_once_it_has_one(
    tmp_path, monkeypatch, caplog
):
    loop = asyncio.get_running_loop()
    take, refused = loop.sock_accept, []

    async def refuse_once(found):
        if not refused:
            refused.append(found)
            raise OSError(errno.EMFILE, "Too many open files")
        return await take(found)

    monkeypatch.setattr(loop, "sock_accept", refuse_once)
    monkeypatch.setattr(web_server, "_RETRY_S", 0.0)
    async with open_house(tmp_path) as house:
        reader, writer = await come(house, HALF + b"\r\n")
        assert b" 401 " in await soon(reader.readline())
        writer.close()
    assert [
        update.getMessage() for update in caplog.records if update.name == web_server.__name__
    ] == ["cannot accept a connection: Too many open files"]


async def test_a_crowd_that_comes_at_once_leaves_the_others_their_turn(tmp_path, monkeypatch):
    turns, taken = 0, []

    def most(wanted):
        taken.append(turns)
        return 4096

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(web_server, "most_connections", most)
    async with open_house(tmp_path) as house, contextlib.AsyncExitStack() as crowd:
        where = urlsplit(house._url)
        busy = asyncio.create_task(others())
        for _ in range(40):
            crowd.enter_context(socket.create_connection((where.hostname, where.port)))
        await eventually(lambda: len(taken) == 40)
        busy.cancel()
    assert len(set(taken)) == 40


async def test_who_does_not_agree_on_tls_is_let_go_as_well(tmp_path, tls):
    async with open_house(tmp_path, **tls) as house:
        reader, writer = await come(house, HALF_A_HELLO)
        with pytest.raises(GONE):
            await soon(reader.readexactly(1))
        writer.close()


async def test_nor_does_one_who_never_agrees_on_tls_keep_others_out(tmp_path, monkeypatch, tls):
    monkeypatch.setattr(web_server, "_MOST_CONNECTIONS", 8)
    monkeypatch.setattr(web_server, "PROMPT_S", 1e6)
    trusting = ssl._create_unverified_context()
    async with open_house(tmp_path, **tls) as house:
        crowd = [await come(house, HALF_A_HELLO) for _ in range(40)]
        reader, writer = await soon(come(house, HALF + b"\r\n", ssl=trusting))
        assert b" 401 " in await soon(reader.readline())
        for reader, _ in crowd[:-8]:
            with pytest.raises(GONE):
                await soon(reader.readexactly(1))
        for _, other in [*crowd, (reader, writer)]:
            other.close()


async def test_no_place_is_kept_for_who_is_not_let_in(tmp_path, monkeypatch):
    monkeypatch.setattr(web_server, "PROMPT_S", 1e6)
    async with open_house(tmp_path, timeout_keep_alive=1e6) as house:
        reader, writer = await come(house, HALF + b"\r\n")
        assert b" 401 " in await soon(reader.read())
        writer.close()


async def test_who_is_not_let_in_writes_nothing_into_the_log(tmp_path, caplog):
    caplog.set_level("DEBUG")
    upgrade = (
        b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    async with open_house(tmp_path) as house:
        for said, status in ((b"no request\r\n\r\n", b" 400 "), (HALF + upgrade, b" 403 ")):
            reader, writer = await come(house, said)
            assert status in await soon(reader.read())
            writer.close()
    assert [update for update in caplog.records if update.name.startswith("uvicorn")] == []


async def test_what_is_no_json_by_its_own_word_is_asked_of_nobody(tmp_path):
    """A form of another site can send text of any kind but this one."""
    async with open_house(tmp_path) as house:
        lines = [
            "POST /ask/knob.set HTTP/1.1",
            f"Host: {urlsplit(house._url).netloc}",
            f"Origin: {house._url}",
            f"Cookie: {house._cookie}",
            "Content-Type: text/plain",
            "Content-Length: 2",
        ]
        reader, writer = await come(house, "\r\n".join([*lines, "", "{}"]).encode())
        assert b" 415 " in await soon(reader.readline())
        writer.close()
