"""Mutated frames to a real sidecar, and to a real link in this process."""

import faulthandler
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from found import Found, Show
from mutation import Mutator, as_msgpack
from templates import RUN, to_link, to_sidecar

from torchloom_core.floor.errors import MessageError
from torchloom_core.wire.commands import Command
from torchloom_core.wire.messages import Hello, JoinFile, PauseState
from torchloom_threadlet import ipc
from torchloom_threadlet.trainer.sidecar_link import SidecarLink

_PATIENCE_S = 15.0
_LOOK_EVERY = 250
_BAD_LENGTHS = 20
WORKER = "g0-0"
HELLO = Hello(run=RUN, worker=WORKER, incarnation=1, group="g0", rank=0, node="n1")


class Sidecar:
    """A sidecar whose trainer is this process, without a running broker."""

    def __init__(self, folder: Path, log: Path) -> None:
        self._folder, self._log = folder, log
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(_PATIENCE_S)
        with theirs, log.open("a") as out:
            command = [sys.executable, "-m", "torchloom_threadlet.sidecar"]
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stderr=out,
                env=os.environ | {"TORCHLOOM_HEARTBEAT_S": "0.05"},
            )
        join = JoinFile(url="nats://127.0.0.1:1", run=RUN, enrol=False)
        path = os.fsencode(folder / "join.json")
        self.socket.sendall(ipc.pack(ipc.Attach(hello=HELLO, join=join, join_path=path)))
        self._unpacker = ipc.Unpacker()

    def beats(self) -> None:
        """Wait for two heartbeats after all that was sent; OSError or EOFError if none comes."""
        count = 2
        self._drain()
        while count > 0:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError("closed by the sidecar")
            for body in self._unpacker.feed(data):
                count -= isinstance(ipc.for_link(body), ipc.Sent)

    def _drain(self) -> None:
        self.socket.setblocking(False)
        try:
            while data := self.socket.recv(1 << 16):
                self._unpacker.feed(data)
        except BlockingIOError:
            pass
        finally:
            self.socket.settimeout(_PATIENCE_S)

    def next(self) -> "Sidecar":
        """End it, and return another."""
        self.close()
        return Sidecar(self._folder, self._log)

    def close(self) -> None:
        """End it."""
        self.socket.close()
        self.process.kill()
        self.process.wait()


def fuzz_sidecar(folder: Path, count: int, seed: int, show: Show) -> Found:
    """Send mutated frames; a wrong length has to end the sidecar with one line."""
    found = Found("sidecar")
    mutator = Mutator(seed)
    log = folder / "log"
    sidecar = Sidecar(folder, log)
    bad_length_every = max(_LOOK_EVERY, count // _BAD_LENGTHS)
    for number in range(1, count + 1):
        template = mutator.random.choice(to_sidecar(WORKER))
        body = mutator.message(template, as_msgpack)[: ipc.MAX_FRAME_BYTES]
        found.sent += 1
        try:
            if number % bad_length_every == 0:
                sidecar.socket.sendall(b"\xff\xff\xff\xff" + body[:1000])
                if sidecar.process.wait(_PATIENCE_S) != 1:
                    found.death(f"status {sidecar.process.returncode} at a bad length")
                sidecar = sidecar.next()
                continue
            if mutator.random.random() < 0.01:
                (folder / "join.json").write_bytes(
                    mutator.bytes(b'{"url":"nats://a","run":"fuzz"}')
                )
            sidecar.socket.sendall(struct.pack(">I", len(body)) + body)
            if number % _LOOK_EVERY == 0 or number == count:
                sidecar.beats()
                show(number)
        except TimeoutError:
            found.hang(f"after {number} frames, the last {body[:200]!r}")
            sidecar = sidecar.next()
        except (OSError, EOFError, subprocess.TimeoutExpired) as error:
            found.death(f"after {number} frames ({error}), the last {body[:200]!r}")
            sidecar = sidecar.next()
    sidecar.close()
    text = log.read_text(errors="replace")
    found.look_for_tracebacks(text)
    found.numbers["log_lines"] = len(text.splitlines())
    return found


class Trainer:
    """The part of the loom that a link needs."""

    unset = ""

    def __init__(self) -> None:
        self.commands = 0

    def hello(self) -> Hello:
        """Return the identity of the worker."""
        return HELLO

    def report(self) -> None:
        """Have nothing to report."""

    def progress(self) -> ipc.Samples:
        """Have trained nothing."""
        return ipc.Samples(state="training", step=0, progress_ns=0, looked_ns=0)

    def deliver(self, command: Command) -> None:
        """Count a command."""
        self.commands += 1

    def update_pause(self, state: PauseState) -> None:
        """Have nothing to pause."""

    def admitted(self, unwanted: str) -> None:
        """Accept any answer."""

    def unlinked(self) -> None:
        """Do nothing."""


class HeldLink(SidecarLink):
    """A link whose sidecar is this process: a socket, and a child that only sleeps."""

    def _spawn(self) -> tuple[subprocess.Popen[bytes], ipc.Wire]:
        self.peer, theirs = socket.socketpair()
        self.peer.settimeout(_PATIENCE_S)
        # It ends with this process in any case.
        waits = [sys.executable, "-c", "input()"]
        self.child = subprocess.Popen(
            waits, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        return self.child, ipc.Wire(theirs)


def fuzz_link(folder: Path, count: int, seed: int, show: Show) -> Found:
    """Send mutated frames to a link, and mutated values through it."""
    found = Found("link")
    mutator = Mutator(seed)
    trainer = Trainer()
    join = JoinFile(url="nats://127.0.0.1:1", run=RUN)
    link = HeldLink(trainer, (folder / "join.json", join), sys.executable)
    link.start()
    unpacker = ipc.Unpacker()
    deadline = time.monotonic() + _PATIENCE_S
    while not hasattr(link, "peer") and time.monotonic() < deadline:
        time.sleep(0.01)
    for number in range(1, count + 1):
        template = mutator.random.choice(to_link(WORKER))
        body = mutator.message(template, as_msgpack)[: ipc.MAX_FRAME_BYTES]
        found.sent += 1
        try:
            link.peer.sendall(struct.pack(">I", len(body)) + body)
            link.send(_odd_frame(mutator))
            if number % _LOOK_EVERY == 0 or number == count:
                _answers(link, unpacker, f"look {number}")
                show(number)
        except TimeoutError:
            found.hang(f"after {number} frames, the last {body[:200]!r}")
            break
        except (OSError, EOFError) as error:
            found.death(f"after {number} frames ({error}), the last {body[:200]!r}")
            break
        except Exception as error:  # noqa: BLE001 - nothing may be raised into a trainer
            found.traceback(f"{type(error).__name__}: {error}")
    if not link._thread.is_alive():
        found.death("the link's thread has ended")
    found.numbers["commands"] = trainer.commands
    link.stop()
    link.peer.close()
    link.child.kill()
    link.child.communicate()
    faulthandler.unregister(link._stack_file.signal)
    return found


def _odd_frame(mutator: Mutator) -> ipc.Goodbye:
    """Return a trainer's goodbye without cleaning."""
    fields = mutator.structure({"error": "boom"})
    return ipc.Goodbye(error=fields.get("error", "") if isinstance(fields, dict) else fields)


def _answers(link: HeldLink, unpacker: ipc.Unpacker, mark: str) -> None:
    """Wait until what is sent through the link now has come out of it, and it reads what comes."""
    link.peer.sendall(ipc.pack(ipc.FlightRequest()))
    link.send(ipc.Goodbye(error=mark))
    marked = flight = False
    while not (marked and flight):
        data = link.peer.recv(1 << 16)
        if not data:
            raise EOFError("closed by the link")
        for body in unpacker.feed(data):
            try:
                frame = ipc.for_sidecar(body)
            except MessageError:
                continue
            marked |= isinstance(frame, ipc.Goodbye) and frame.error == mark
            flight |= isinstance(frame, ipc.Flight)
