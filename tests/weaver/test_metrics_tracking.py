"""Knobs, verdicts and goodput of a live Weaver stand in TensorBoard and Weights & Biases."""

import asyncio
import socket
import struct
import threading
from contextlib import ExitStack

import nats
import pytest

from tests.deadlines import DEADLINE_S
from torchloom_core.cli.metrics_tracking import _to_tensorboard, _to_wandb, follow, track
from torchloom_core.floor.errors import ConfigError, StateError
from torchloom_core.live.transport.ports import lasting_port
from torchloom_core.live.transport.security.credentials import Credentials

ALERT = b'{"action": {"kind": "alert", "worker": "g0-0", "text": "hot"}}'


@pytest.fixture
async def weaver_url(start_weaver, tmp_path):
    """The metrics of a Weaver; a person has requested an alert."""
    port = lasting_port("127.0.0.1")
    url = await start_weaver(f"[metrics]\naddress = '127.0.0.1:{port}'")
    creds = Credentials.find(tmp_path, "run").operator_creds
    person = await nats.connect(url, user_credentials=str(creds))
    await person.request("tl.ctl.run.operator.propose", ALERT, timeout=DEADLINE_S)
    await person.close()
    return f"http://127.0.0.1:{port}/metrics"


def scalars(folder):
    """Return tag to value of an event file."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    (path,) = folder.iterdir()
    data, at, found = path.read_bytes(), 0, {}
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        event = event_pb2.Event.FromString(data[at + 12 : at + 12 + size])
        found |= {value.tag: value.simple_value for value in event.summary.value}
        at += size + 16
    return found


@pytest.mark.integration
@pytest.mark.long
async def test_tensorboard_has_verdicts_workers_and_goodput(weaver_url, tmp_path):
    pytest.importorskip("tensorboardX")

    def write():
        with ExitStack() as stack:
            follow(weaver_url, [_to_tensorboard(tmp_path / "board", stack)], 0.1, rounds=2)

    await asyncio.to_thread(write)
    found = scalars(tmp_path / "board")
    assert "torchloom/run_rank_seconds/useful" in found
    assert [value for tag, value in found.items() if "verdicts_total/" in tag] == [1.0], found
    assert not [tag for tag in found if "weaver_" in tag]


@pytest.mark.integration
@pytest.mark.long
async def test_weights_and_biases_gets_the_same(weaver_url, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")

    def write():
        with ExitStack() as stack:
            follow(weaver_url, [_to_wandb("project", "run", stack)], 0.1, rounds=2)

    await asyncio.to_thread(write)
    (record,) = tmp_path.rglob("*.wandb")
    assert b"verdicts_total" in record.read_bytes()


@pytest.mark.parametrize(
    ("table", "options", "rule"),
    [
        ("", {}, r"need a table \[metrics\]"),
        ("[metrics]", {}, "need --tensorboard or --wandb, was neither"),
        ("[metrics]", {"wandb": "x", "every_s": 0}, "need more than 0, was 0"),
    ],
)
def test_a_mistake_is_one_clear_line(table, options, rule, tmp_path):
    config = tmp_path / "torchloom.toml"
    config.write_text(table)
    with pytest.raises(ConfigError, match=rule):
        track(config=config, **options)


GOOD = b"# TYPE torchloom_alerts counter\ntorchloom_alerts_total 2\ntorchloom_alerts_created 1e9\n"


def answering(*answers):
    """Return the URL of a server that gives these answers, one a connection."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        with server:
            for answer in answers:
                client, _ = server.accept()
                with client:
                    client.recv(4096)
                    client.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{server.getsockname()[1]}/metrics"


def test_an_answer_that_is_cut_short_or_anothers_is_waited_out(capsys):
    cut = b"HTTP/1.0 200 OK\r\nContent-Length: 500\r\n\r\n"
    whole, seen = b"HTTP/1.0 200 OK\r\n\r\n" + GOOD, []
    answers = whole, cut + GOOD, b"INFO {}\r\n", b"HTTP/1.0 200 OK\r\n\r\n{]", whole
    follow(answering(*answers), [lambda values, step: seen.append(values)], 0.0, rounds=5)
    assert seen == [{"alerts_total": 2.0}] * 2
    assert capsys.readouterr().out.count("no metrics: IncompleteRead") == 1
    with pytest.raises(StateError, match=r"no metrics: INFO"):
        follow(answering(b"INFO {}\r\n"), [], 0.0, rounds=1)


def test_without_a_weaver_it_ends_with_one_line():
    where = f"http://127.0.0.1:{lasting_port('127.0.0.1')}/metrics"
    with pytest.raises(StateError, match=r"no metrics: .*refused"):
        follow(where, [], 1.0, rounds=1)
