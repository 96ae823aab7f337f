"""Run the store of a node's memory, which outlives the trainers.

Its arguments are a socket, the folder, the address to listen at, and how long it lingers, seconds.
"""

import os
import resource
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from torchloom_core.checkpoints.storage import LocalFolder
from torchloom_threadlet.checkpoint.node_store.address import (
    STARTED,
    STORE_FILE,
    StoreRecord,
    free_left_overs,
    held,
    living_processes,
    read_record,
)
from torchloom_threadlet.checkpoint.node_store.serving import Service

_ENDED_LINGER_S = 3.0
_LOOK_S = 0.5
_MOST_CONNECTIONS = 512
_STACK_BYTES = 256 << 10


def main() -> None:
    """Serve the folder until its run has ended, then free the memory."""
    number, folder, host, linger_s = sys.argv[1:5]
    if os.fork():  # no child of a trainer's: what kills its children must not free the memory
        os._exit(0)
    with socket.socket(fileno=int(number)) as link:
        try:
            store = NodeStore(Path(folder), host, float(linger_s))
        except OSError as error:
            link.sendall(f"{host}: {error.strerror or error}".encode())
            return
        _let_go_of_the_trainer()
        link.sendall(STARTED)
    store.serve()


class NodeStore:
    """Serves a folder at an address of this node; OSError if that cannot be."""

    def __init__(self, folder: Path, host: str, linger_s: float) -> None:
        self._folder, self._linger_s = folder, linger_s
        before = read_record(folder)
        self._listening = _listen(host, before.port if before is not None else 0)
        secret = before.secret if before is not None else secrets.token_hex(32)
        self._service = Service(LocalFolder(folder), secret)
        self._trainers = living_processes(folder)
        port = self._listening.getsockname()[1]
        _write_record(folder, StoreRecord(host=host, port=port, secret=secret, pid=os.getpid()))

    def serve(self) -> None:
        """Serve until nobody needs this memory any more, or SIGTERM; then free it."""
        try:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit())
            threading.stack_size(_STACK_BYTES)
            threading.Thread(target=self._accept, daemon=True).start()
            free_left_overs(self._folder.parent, self._linger_s)
            while self._is_mine() and not (self._is_over() and self._has_freed()):
                time.sleep(_LOOK_S)
        except SystemExit:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _is_mine(self) -> bool:
        """Return whether the folder was not removed, nor is another store's."""
        record = read_record(self._folder)
        return record is not None and record.pid == os.getpid()

    def _has_freed(self) -> bool:
        """Free the memory; return False if a trainer has come meanwhile."""
        with suppress(OSError), held(self._folder, 0.0):
            if self._is_over():
                shutil.rmtree(self._folder, ignore_errors=True)
                return True
        return False

    def _is_over(self) -> bool:
        service, trainers = self._service, living_processes(self._folder)
        if trainers - self._trainers:
            service.has_ended = False  # the run goes on
        self._trainers = trainers
        if trainers:
            service.used_s = time.monotonic()
        left_s = time.monotonic() - service.used_s
        return left_s > (_ENDED_LINGER_S if service.has_ended else self._linger_s)

    def _accept(self) -> None:
        free = threading.BoundedSemaphore(_MOST_CONNECTIONS)

        def serve(link: socket.socket) -> None:
            try:
                self._service.serve(link)
            finally:
                free.release()

        while True:
            free.acquire()
            link = None
            try:
                link, _ = self._listening.accept()
                threading.Thread(target=serve, args=(link,), daemon=True).start()
            except (OSError, RuntimeError):  # a limit of the system's
                free.release()
                if link is not None:
                    link.close()
                time.sleep(_LOOK_S)


def _listen(host: str, port: int) -> socket.socket:
    """Listen at the port that a store of this folder had before, if it is free."""
    with suppress(OSError):
        return socket.create_server((host, port), backlog=_MOST_CONNECTIONS)
    return socket.create_server((host, 0), backlog=_MOST_CONNECTIONS)


def _write_record(folder: Path, record: StoreRecord) -> None:
    part = folder / f"{STORE_FILE}.part"
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.encode(record))
    part.rename(folder / STORE_FILE)


def _let_go_of_the_trainer() -> None:
    """Keep neither its error output open nor its folder in use, and allow for connections."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)
    os.chdir("/")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main()
