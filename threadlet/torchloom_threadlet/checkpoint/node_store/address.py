"""Where the store of a node's memory is, and how it is started: once a node and run."""

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple, Self

import msgspec

from torchloom_threadlet.trainer.sidecar_start import exit_reason, find_interpreter, start_beside

STORE_FILE = "store.json"
STARTED = b"started"
LINGER_S = 1800.0

_LOCK, _TRAINER, _PARKED = ".starting", ".trainer-", ".parked-"
_MODULE = "torchloom_threadlet.checkpoint.node_store"
_MEMORY = Path("/dev/shm")
_START_S, _LOOK_S = 20.0, 0.02
_LONGEST_ANSWER = 4096


class StoreAddress(NamedTuple):
    """A store's address; a process that has the secret may read and write there."""

    host: str
    port: int
    secret: str

    def text(self) -> str:
        """Return it as text."""
        return f"{self.host}|{self.port}|{self.secret}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what :meth:`text` returned; ValueError if it is something else."""
        host, port, secret = text.split("|")
        return cls(host, int(port), secret)


class StoreRecord(msgspec.Struct, kw_only=True, frozen=True):
    """The content of ``store.json`` in a store's folder."""

    host: str
    port: int
    secret: str
    pid: int

    @property
    def address(self) -> StoreAddress:
        """The store's address."""
        return StoreAddress(self.host, self.port, self.secret)


def store_folder(run: str, node: str) -> Path:
    """Return the folder of a node's memory for a run, which its place names."""
    memory = _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())
    digest = hashlib.sha256(f"{run}\0{node}".encode()).hexdigest()[:16]
    return memory / f"{_of_user()}{digest}"


def start_store(
    folder: Path, host: str, linger_s: float = LINGER_S, *, by_trainer: bool = True
) -> StoreAddress:
    """Return the store that serves a folder at an address of this node; start one if need be.

    A trainer, but no writer, is one of its trainers from now on. The store frees the memory
    ``linger_s`` after its last trainer has ended and the last request came. Raises OSError if it
    cannot start.
    """
    with held(folder, _START_S):
        if by_trainer:
            (folder / mark_of(os.getpid())).touch()
            (folder / mark_of(os.getpid(), _PARKED)).unlink(missing_ok=True)
        record = read_record(folder)
        if record is None or record.host != host or not _runs(record.pid):
            _start(folder, host, linger_s)
            record = read_record(folder)
    if record is None:
        raise OSError(f"{folder}: its store has ended")
    return record.address


def read_record(folder: Path) -> StoreRecord | None:
    """Return what a folder's store says of itself, None if there is no store."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((folder / STORE_FILE).read_bytes(), type=StoreRecord)
    return None


def park(folder: Path) -> None:
    """Note that this process, one of the folder's trainers, keeps its state there and waits."""
    (folder / mark_of(os.getpid(), _PARKED)).touch()
    (folder / mark_of(os.getpid())).unlink(missing_ok=True)


def living_processes(folder: Path) -> set[str]:
    """Return the marks of the trainers that run, and of those that are parked."""
    return living_trainers(folder) | living_trainers(folder, _PARKED)


def living_trainers(folder: Path, kind: str = _TRAINER) -> set[str]:
    """Return the marks of the trainers that run; those of ended ones are removed."""
    living = set()
    for path in folder.glob(f"{kind}*"):
        pid = path.name.removeprefix(kind).partition("-")[0]
        if pid.isdecimal() and path.name == mark_of(int(pid), kind):
            living.add(path.name)
        else:
            path.unlink(missing_ok=True)
    return living


def free_left_overs(memory: Path, linger_s: float) -> None:
    """Free the folders of this user's stores that were killed, and had no trainer for so long."""
    for folder in memory.glob(f"{_of_user()}*"):
        with suppress(OSError), held(folder, 0.0):
            is_old = time.time() - folder.stat().st_mtime > linger_s
            record = read_record(folder)
            is_served = record is not None and _runs(record.pid)
            if is_old and not is_served and not living_processes(folder):
                shutil.rmtree(folder)


@contextmanager
def held(folder: Path, wait_s: float) -> Iterator[None]:
    """Hold the lock under which a folder's store starts and ends.

    The folder is made. Raises TimeoutError if another process holds the lock, OSError if the
    folder is another user's.
    """
    end_s = time.monotonic() + wait_s
    while (file := _locked(folder)) is None:
        if time.monotonic() > end_s:
            raise TimeoutError(f"{folder}: another process starts its store")
        time.sleep(_LOOK_S)
    with file:
        try:
            yield
        finally:  # a child that was forked meanwhile must not go on to hold it
            fcntl.flock(file, fcntl.LOCK_UN)


def _locked(folder: Path) -> IO[str] | None:
    """Lock a folder; None if another process has, or has just removed it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    there = folder.lstat()
    if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.getuid():
        raise OSError(f"{folder}: belongs to another user")
    path = folder / _LOCK
    file = None
    with suppress(BlockingIOError, FileNotFoundError):
        file = path.open("w")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
            return file
    if file is not None:
        file.close()
    return None


def _start(folder: Path, host: str, linger_s: float) -> None:
    process, link = start_beside(find_interpreter(), _MODULE, (str(folder), host, str(linger_s)))
    with link:
        link.settimeout(_START_S)
        answer = b""
        with suppress(TimeoutError):
            while len(answer) < _LONGEST_ANSWER and (data := link.recv(_LONGEST_ANSWER)):
                answer += data
    reason = answer.decode(errors="replace") or exit_reason(process) or "it did not start"
    process.kill()  # it has left the store to its child
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
    if answer != STARTED:
        raise OSError(f"{folder}: the store of this node's memory: {reason}")


def _of_user() -> str:
    """Return how the names of this user's folders begin."""
    return f"torchloom-store-{os.getuid()}-"


def mark_of(pid: int, kind: str = _TRAINER) -> str:
    """Return the name of a trainer's mark: its process id, and when it started."""
    with suppress(OSError):
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
        if fields[0] != "Z":
            return f"{kind}{pid}-{fields[19]}"
    return f"{kind}{pid}-ended"


def _runs(pid: int) -> bool:
    """Return whether a store runs, and its process id was not given to another process."""
    with suppress(OSError):
        return _MODULE.encode() in Path("/proc", str(pid), "cmdline").read_bytes()
    return False
