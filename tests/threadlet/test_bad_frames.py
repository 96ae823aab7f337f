"""An invalid frame is dropped and logged; only a bad length ends the stream."""

import contextlib
import faulthandler
import os
import socket
import struct
import subprocess
import sys

import msgspec
import pytest

from tests.deadlines import DEADLINE_S
from torchloom_core.floor.errors import MessageError
from torchloom_core.wire.commands import Ack
from torchloom_core.wire.messages import Hello, JoinFile, Note
from torchloom_threadlet import ipc
from torchloom_threadlet.trainer.sidecar_link import SidecarLink

HELLO = Hello(run="run", worker="g0-0", incarnation=1, group="g0", rank=0, node="n1")
BAD_BODIES = [
    b"",
    b"\xc1",
    b"\x91" * 100_000,
    b"\xdd\xff\xff\xff\xff",
    b"\x82\xa4type\xa7goodbye\xa5error\xa1\xff",
    msgspec.msgpack.encode(
        {"type": "samples", "state": "training", "step": 2**60, "progress_ns": 0}
    ),
    msgspec.msgpack.encode(
        Hello(run="run", worker="b-0", incarnation=1, group="b", rank=0, node="n")
    ),
    msgspec.msgpack.encode({"type": "note", "kind": "a b"}),
]


@pytest.mark.parametrize(
    "frame",
    [
        ipc.Samples(state="training", step=2**70, progress_ns=0),
        ipc.Goodbye(error="\ud800"),
        ipc.Goodbye(error=object()),
        ipc.Flight(text="x" * (ipc.MAX_FRAME_BYTES + 1)),
    ],
)
def test_an_invalid_length_is_a_message_error(frame):
    with pytest.raises(MessageError):
        ipc.pack(frame)


@pytest.mark.parametrize("body", BAD_BODIES)
def test_an_invalid_body_is_a_message_error(body):
    with pytest.raises(MessageError, match="frame from the sidecar"):
        ipc.for_link(body)
    if b"b-0" not in body:
        with pytest.raises(MessageError, match="frame from the trainer"):
            ipc.for_sidecar(body)


class RealSidecar:
    """A sidecar whose trainer is the test, without a broker."""

    def __init__(self, folder, attach=None):
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(DEADLINE_S)
        self.log = folder / "log"
        self.join_path = folder / "join.json"
        with theirs, self.log.open("w") as log:
            arguments = [str(theirs.fileno()), str(os.getpid())]
            self.process = subprocess.Popen(
                [sys.executable, "-m", "torchloom_threadlet.sidecar", *arguments],
                pass_fds=[theirs.fileno()],
                stderr=log,
                env=os.environ | {"TORCHLOOM_HEARTBEAT_S": "0.05"},
            )
        join = JoinFile(url="nats://127.0.0.1:1", run="run", enrol=False)
        path = os.fsencode(self.join_path)
        self.send(attach or ipc.pack(ipc.Attach(hello=HELLO, join=join, join_path=path)))
        self._unpacker = ipc.Unpacker()

    def send(self, data):
        self.socket.sendall(data)

    def beats(self, count=3):
        """Wait until the sidecar has sent so many heartbeats."""
        while count > 0:
            bodies = self._unpacker.feed(self.socket.recv(1 << 16))
            count -= sum(isinstance(ipc.for_link(body), ipc.Sent) for body in bodies)

    def ended(self):
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def start_sidecar(tmp_path):
    with contextlib.ExitStack() as stack:

        def start(attach=None):
            sidecar = RealSidecar(tmp_path, attach)
            stack.callback(sidecar.socket.close)
            stack.callback(sidecar.process.wait)
            stack.callback(sidecar.process.kill)
            return sidecar

        yield start


def framed(body):
    return struct.pack(">I", len(body)) + body


@pytest.mark.long
@pytest.mark.integration
def test_a_sidecar_drops_bad_frames_with_one_line_and_ends_at_a_bad_length(start_sidecar):
    sidecar = start_sidecar()
    sidecar.beats()
    for body in BAD_BODIES * 5:
        sidecar.send(framed(body))
    sidecar.join_path.write_bytes(b"[" * 100_000)
    sidecar.beats(25)
    assert sidecar.process.poll() is None
    sidecar.send(b"\xff\xff\xff\xff")
    assert sidecar.ended() == 1
    log = sidecar.log.read_text()
    assert log.count("dropped a frame from the trainer") == 1
    assert "the sidecar ends: frame: need at most 4194304 bytes, was 4294967295" in log
    assert "Traceback" not in log


@pytest.mark.integration
@pytest.mark.parametrize("attach", [framed(b"\xc1"), framed(b"\x91" * 9999), b"\xff\xff\xff\xff"])
def test_an_invalid_attach_ends_the_sidecar_with_one_line(start_sidecar, attach):
    sidecar = start_sidecar(attach)
    assert sidecar.ended() == 1
    [line] = sidecar.log.read_text().splitlines()
    assert line.startswith("torchloom sidecar: ERROR: the sidecar ends: frame")


class Trainer:
    """What a link needs, and a command too large for a frame."""

    unset = ""

    def __init__(self):
        self.got = []

    def hello(self):
        return HELLO

    def report(self):
        return None

    def progress(self):
        return ipc.Samples(state="training", step=0, progress_ns=0)

    def deliver(self, command):
        self.got.append(command)


@pytest.mark.integration
def test_a_link_sends_valid_frames_and_logs_one_line_for_the_rest(start_link, logged):
    """A trainer's call into the link never raises."""
    link, peer = start_link()
    note = Note(run="run", worker="g0-0", incarnation=1, kind="error")
    for _ in range(3):
        link.send(msgspec.structs.replace(note, fields={"error": "\ud800"}))
        link.send(ipc.Goodbye(error=object()))
    link.send(note)
    assert peer.next(Note) == note
    for body in BAD_BODIES:
        peer.send(framed(body))
    peer.send(ipc.pack(ipc.Sent(batches=7)))
    logged_lines = logged.until(lambda lines: any("dropped a frame" in line for line in lines))
    assert sum("not sent to the sidecar" in line for line in logged_lines) == 1
    assert sum("dropped a frame from the sidecar" in line for line in logged_lines) == 1
    assert not [line for line in logged_lines if "the sidecar ended after" in line]


class Peer:
    """The sidecar's end of a link, used by the test."""

    def __init__(self):
        self.socket, self.theirs = socket.socketpair()
        self.socket.settimeout(DEADLINE_S)
        self._unpacker = ipc.Unpacker()

    def send(self, data):
        self.socket.sendall(data)

    def next(self, kind):
        while True:
            for body in self._unpacker.feed(self.socket.recv(1 << 16)):
                frame = ipc.for_sidecar(body)
                if isinstance(frame, kind):
                    return frame


@pytest.fixture
def start_link(tmp_path, monkeypatch):
    """Return a function that starts a link whose sidecar is the test."""
    peer = Peer()
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setattr(SidecarLink, "_spawn", lambda self: (sleeper, ipc.Wire(peer.theirs)))
    join = JoinFile(url="nats://127.0.0.1:1", run="run")
    link = SidecarLink(Trainer(), (tmp_path / "join.json", join), sys.executable)

    def start():
        link.start()
        peer.next(ipc.Attach)
        return link, peer

    yield start
    link.stop()
    faulthandler.unregister(link._stack_file.signal)
    link._stack_file._file.close()
    sleeper.kill()
    sleeper.wait()
    sleeper.stdin.close()
    peer.socket.close()


@pytest.mark.integration
def test_an_ack_that_cannot_be_sent_does_not_stop_the_link(start_link):
    link, peer = start_link()
    ack = Ack(command="c1", run="run", worker="g0-0", incarnation=1, epoch=1, status="applied")
    link.send(msgspec.structs.replace(ack, detail="\ud800"))
    link.send(ack)
    assert peer.next(Ack) == ack
