"""The store of a node's memory: what it keeps, refuses and survives."""

import hashlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from torchloom_core.checkpoints.storage import LocalFolder
from torchloom_core.testing import StorageContract
from torchloom_threadlet.checkpoint.node_store import address as address_module
from torchloom_threadlet.checkpoint.node_store import client as client_module
from torchloom_threadlet.checkpoint.node_store import room, serving
from torchloom_threadlet.checkpoint.node_store.address import (
    StoreAddress,
    free_left_overs,
    read_record,
    start_store,
    store_folder,
)
from torchloom_threadlet.checkpoint.node_store.client import StoreClient
from torchloom_threadlet.checkpoint.node_store.serving import Service
from torchloom_threadlet.checkpoint.node_store.wire import Request, Wire, answer_to

FOLDER = "0001-step-0000000004-0123abcd"
FILE = f"{FOLDER}/rank-0.bin"
SECRET = "secret"
HOST = "127.0.0.1"
DEADLINE_S = 60.0


@contextmanager
def served(folder):
    """Serve a folder in this process, and give the address."""
    folder.mkdir(exist_ok=True)
    service, threads = Service(LocalFolder(folder), SECRET), []

    def accept():
        with suppress(OSError):
            while True:
                link, _ = listening.accept()
                threads.append(threading.Thread(target=service.serve, args=(link,), daemon=True))
                threads[-1].start()

    with socket.create_server((HOST, 0)) as listening:
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield StoreAddress(HOST, listening.getsockname()[1], SECRET)
        listening.shutdown(socket.SHUT_RDWR)
        accepting.join(DEADLINE_S)


@pytest.fixture
def place(tmp_path):
    with served(tmp_path / "memory") as address:
        yield tmp_path / "memory", address


def client_of(address):
    return StoreClient(address, "the memory of n1")


def connected(address):
    """Return a connection that has proven that it has the secret."""
    wire = Wire(socket.create_connection((address.host, address.port), DEADLINE_S))
    wire.link.sendall(answer_to(address.secret, wire.line(128)) + b"\n")
    assert wire.line(128)
    return wire


class Renamed(StoreClient):
    """Keeps what has other names than a checkpoint's under such a name."""

    def __init__(self, address, names):
        super().__init__(address, "memory")
        self.names = names

    def there(self, name):
        folder, *rest = name.split("/", 1)
        number = self.names.setdefault(folder, len(self.names))
        there = f"0001-step-0000000001-{number:08x}"
        for file in rest:
            there += f"/rank-{self.names.setdefault(file, len(self.names))}.bin"
        return there

    def here(self, number):
        return next(name for name, its in self.names.items() if its == number)

    def folders(self):
        return [self.here(int(name[-8:], 16)) for name in super().folders()]

    def files(self, folder):
        return [self.here(int(name[5:-4])) for name in super().files(self.there(folder))]

    def open(self, name):
        return super().open(self.there(name))

    def write(self, name, parts):
        super().write(self.there(name), parts)

    def remove(self, folder):
        super().remove(self.there(folder))


class TestStoreClient(StorageContract):
    large_bytes = 3 << 20
    folder: Path

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.numbers, self.folder = itertools.count(), tmp_path

    @contextmanager
    def new_place(self):
        names = {}
        with served(self.folder / str(next(self.numbers))) as address:
            yield lambda: Renamed(address, names)


def test_an_address_is_read_from_its_text():
    address = StoreAddress("10.0.0.7", 4711, "ab12")
    assert StoreAddress.parse(address.text()) == address
    with pytest.raises(ValueError, match="unpack"):
        StoreAddress.parse("10.0.0.7")


def test_a_range_is_received_into_a_view(place):
    client = client_of(place[1])
    client.write(FILE, [bytes(range(100))])
    view = memoryview(bytearray(50))
    assert client.fetch(FILE, 20, view[10:30]) == 20
    assert view[10:30] == bytes(range(20, 40))
    assert client.fetch(FILE, 90, view) == 10
    with pytest.raises(FileNotFoundError):
        client.fetch(f"{FOLDER}/rank-1.bin", 0, view)


def test_a_client_keeps_few_connections_however_much_it_writes(place):
    client = client_of(place[1])
    for number in range(20):
        client.write(f"{FOLDER}/rank-{number}.json", [b"{}"])
    assert client._idle.qsize() == 1


def test_nothing_is_answered_without_the_secret(place):
    folder, address = place
    LocalFolder(folder).write(FILE, [b"weights"])
    for secret in ("", "Secret", "secret\n"):
        with pytest.raises(OSError, match=r"ended|reset"):
            client_of(address._replace(secret=secret)).folders()
    with socket.create_connection((HOST, address.port), DEADLINE_S) as link:
        link.sendall(b'{"do":"folders"}\n' * 5)
        told = b"".join(iter(lambda: received(link), b""))
    assert len(told) <= 65
    assert FOLDER.encode() not in told


def received(link):
    with suppress(ConnectionError):
        return link.recv(1 << 16)
    return b""


def test_a_client_that_proves_nothing_is_dropped(place, monkeypatch):
    monkeypatch.setattr(serving, "_PROOF_S", 0.05)
    with socket.create_connection((HOST, place[1].port), DEADLINE_S) as link:
        assert link.recv(128)
        assert received(link) == b""


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b"\xff\xfe", b"null", b"x" * 5000, b'{"do":"read","at":-1}',
     b'{"do":"read","count":1e99}', b'{"do":"fold","x":1}', b'{"do":["folders"]}'],
)  # fmt: skip
def test_a_hostile_line_ends_its_connection_alone(place, line):
    with closing(connected(place[1])) as wire:
        wire.link.sendall(line + b"\n")
        assert received(wire.link) == b""
    assert client_of(place[1]).folders() == []


@pytest.mark.parametrize(
    "name",
    ["", "store.json", "../secret", f"{FOLDER}/../store.json", f"{FOLDER}/rank-0.bin.part",
     f"/{FILE}", f"{FOLDER}/", f"{FOLDER}/rank-0.bin\0", f"{FOLDER}/rank-0.bin/x", FILE + "\n"],
)  # fmt: skip
def test_only_files_of_checkpoints_have_names(place, name):
    client = client_of(place[1])
    with pytest.raises(OSError, match="need a file of a checkpoint"):
        client.open(name).read()
    with pytest.raises(OSError, match="need a file of a checkpoint"):
        client.write(name, [b"x"])
    with pytest.raises(OSError, match="need the folder of a checkpoint"):
        client.remove(name)
    assert list(place[0].iterdir()) == []


@pytest.mark.parametrize(
    "sent",
    [
        (5).to_bytes(8, "big") + b"12",
        (2).to_bytes(8, "big") + b"12",
        (1 << 40).to_bytes(8, "big") + b"12",
        (2).to_bytes(8, "big") + b"12" + bytes(8) + hashlib.sha256(b"13").digest(),
    ],
    ids=["cut in a chunk", "cut after one", "a chunk too long", "another digest"],
)
def test_a_file_that_is_not_sent_whole_leaves_nothing(place, sent):
    folder, address = place
    with closing(connected(address)) as wire:
        wire.send(Request(do="write", name=FILE))
        assert wire.line(128)
        wire.link.sendall(sent)
        wire.link.shutdown(socket.SHUT_WR)
        while received(wire.link):
            pass
    assert list((folder / FOLDER).iterdir()) == []
    client_of(address).write(FILE, [b"whole"])
    assert (folder / FILE).read_bytes() == b"whole"


def test_a_file_that_does_not_fit_is_refused_in_a_line(place, monkeypatch):
    folder, address = place
    client = client_of(address)
    with monkeypatch.context() as patch:
        patch.setattr(
            room, "_memories", lambda path: [(50 << 20, 100 << 20), (15 << 19, 100 << 20)]
        )
        with pytest.raises(OSError, match=r"rank-0.bin: memory is full: \d MB are free"):
            client.write(FILE, itertools.repeat(bytes(1 << 20), 1000))
    assert list((folder / FOLDER).iterdir()) == []
    client.write(FILE, [b"fits"])


def test_no_more_than_what_is_free_of_the_smallest_memory_is_taken(monkeypatch, tmp_path):
    monkeypatch.setattr(room, "_memories", lambda path: [(500, 1000), (300, 2000)])
    assert room.room_bytes(tmp_path) == 200


def test_two_clients_that_write_one_file_leave_one_of_both(place):
    folder, address = place
    contents = [bytes([number]) * (1 << 20) for number in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda data: client_of(address).write(FILE, [data] * 3), contents))
    assert (folder / FILE).read_bytes() in [data * 3 for data in contents]
    assert [path.name for path in (folder / FOLDER).iterdir()] == ["rank-0.bin"]


def test_a_store_that_is_gone_is_an_error_and_one_that_is_back_is_used(tmp_path):
    with served(tmp_path) as address:
        client = client_of(address)
        client.write(FILE, [b"weights"])
        opened = client.open(FILE)
    with pytest.raises(OSError, match="refused"):
        client_of(address).folders()
    client.address = address._replace(port=1)
    while not client._idle.empty():
        client._idle.get().close()
    with pytest.raises(OSError, match="refused"):
        opened.read()
    with served(tmp_path) as client.address:
        assert opened.read() == b"weights"


def test_a_store_that_does_not_answer_is_not_asked_for_a_while(monkeypatch):
    monkeypatch.setattr(client_module, "_REPLY_S", 0.05)
    with socket.create_server((HOST, 0)) as silent:
        client = client_of(StoreAddress(HOST, silent.getsockname()[1], SECRET))
        with pytest.raises(TimeoutError):
            client.folders()
        silent.accept()[0].close()
        with pytest.raises(TimeoutError, match="it did not answer in time"):
            client.fetch(FILE, 0, memoryview(bytearray(1)))
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_what_a_killed_store_left_is_freed_and_what_may_be_needed_is_not(tmp_path):
    names = [store_folder("run-7", f"n{number}").name for number in range(4)]
    old, recent, with_trainer, of_others = folders = [
        tmp_path / name for name in [*names[:3], "other-" + names[3]]
    ]
    for folder in folders:
        LocalFolder(folder).write(FILE, [b"weights"])
        (folder / ".starting").touch()
    (with_trainer / address_module.mark_of(os.getpid())).touch()
    for folder in (old, with_trainer, of_others):
        os.utime(folder, (1.0, 1.0))
    free_left_overs(tmp_path, 1800.0)
    assert sorted(tmp_path.iterdir()) == sorted([recent, with_trainer, of_others])


# The process


def until(condition):
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.fixture
def memory():
    folder = store_folder(f"test {os.getpid()} {time.monotonic_ns()}", "n0")
    yield folder
    if (record := read_record(folder)) is not None:
        with suppress(ProcessLookupError):
            os.kill(record.pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def trainer_of(folder, linger_s=1800.0):
    """Start a process that starts the folder's store, and waits; return it once it has."""
    code = (
        "import sys, pathlib\n"
        "from torchloom_threadlet.checkpoint.node_store.address import start_store\n"
        "start_store(pathlib.Path(sys.argv[1]), '127.0.0.1', float(sys.argv[2]))\n"
        "print('started', flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder), str(linger_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return process


def ended(process):
    """Kill a trainer, and return what it has written to its error output."""
    assert process.stdout.readline() == b"started\n"
    process.kill()
    return process.communicate(timeout=DEADLINE_S)[1]  # returns: the store holds no pipe of it


@pytest.mark.integration
@pytest.mark.long
def test_trainers_that_start_at_once_get_one_store_which_outlives_their_kill(memory):
    trainers = [trainer_of(memory) for _ in range(4)]
    assert [ended(trainer) for trainer in trainers] == [b""] * 4
    record = read_record(memory)
    assert (memory / "store.json").stat().st_mode & 0o777 == 0o600
    assert memory.stat().st_mode & 0o777 == 0o700
    client = client_of(record.address)
    client.write(FILE, [b"weights"])
    assert start_store(memory, HOST) == record.address
    status = Path(f"/proc/{record.pid}/status").read_text()
    assert int(status.split("VmRSS:")[1].split()[0]) < 60_000
    maps = Path(f"/proc/{record.pid}/maps").read_text()
    assert not any(word in maps for word in ("numpy", "libtorch"))


@pytest.mark.integration
@pytest.mark.long
def test_a_killed_store_is_an_error_soon_and_the_next_one_has_its_files(memory):
    address = start_store(memory, HOST)
    client = client_of(address)
    client.write(FILE, [b"weights"])
    os.kill(read_record(memory).pid, signal.SIGKILL)
    until(lambda: not client_works(client))
    assert start_store(memory, HOST) == address
    assert client.open(FILE).read() == b"weights"


def client_works(client):
    with suppress(OSError):
        client.folders()
        return True
    return False


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.parametrize("way", ["linger", "end", "sigterm"])
def test_a_store_ends_and_frees_the_memory(memory, way):
    trainer = trainer_of(memory, linger_s=0.5 if way == "linger" else 1800.0)
    assert ended(trainer) == b""
    record = read_record(memory)
    if way == "sigterm":
        os.kill(record.pid, signal.SIGTERM)
    elif way == "end":
        client_of(record.address).end()
    until(lambda: not memory.exists())
    until(lambda: not Path(f"/proc/{record.pid}").exists())


@pytest.mark.integration
@pytest.mark.long
def test_a_store_that_cannot_listen_is_one_line(memory):
    with pytest.raises(OSError, match=r"192.0.2.1: Cannot assign requested address"):
        start_store(memory, "192.0.2.1")
