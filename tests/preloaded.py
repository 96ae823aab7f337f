"""Processes that are forked from one that has loaded what they need of others' already.

To load torch, torchft and the optimizers takes three seconds of a core, longer than most trainers
of the tests train; NATS and what prints tables takes half a second, most of what a command takes.
Nothing of torchLoom's is loaded before the fork, and what a process does from its first line on, it
does as if Python had been started with it.
"""

import atexit
import contextlib
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

_REQUEST = 1 << 20
_STATUS = 4


class Preloaded:
    """One of them, with the part of :class:`subprocess.Popen` that the tests use.

    Parameters
    ----------
    command : sequence
        A script and its arguments, or ``"-m"``, a module and its arguments.
    stdin, stdout : subprocess.PIPE, optional
        Of text; ``stdout`` may be a file as well.
    loads : {"torch", "commands"}
        What is loaded before the fork.
    """

    def __init__(
        self, command, *, env=None, cwd=None, stdin=None, stdout=None, stderr=None, loads="torch"
    ):
        self.returncode = self.stdin = self.stdout = None
        files = [0, 1, 2 if stderr is None else stderr.fileno()]
        if stdin is not None:
            files[0], ours = os.pipe()
            self.stdin = os.fdopen(ours, "w")
        if stdout == subprocess.PIPE:
            ours, files[1] = os.pipe()
            self.stdout = os.fdopen(ours)
        elif stdout is not None:
            files[1] = stdout.fileno()
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(_server(loads))
        request = {
            "command": [str(word) for word in command],
            "environment": dict(os.environ if env is None else env),
            "folder": str(cwd or Path.cwd()),
        }
        socket.send_fds(self._line, [json.dumps(request).encode() + b"\n"], files)
        for given, file in zip((stdin, stdout), files, strict=False):
            if given == subprocess.PIPE:
                os.close(file)
        self.pid = int.from_bytes(self._line.recv(_STATUS), "big")

    def poll(self):
        """Return its exit status, None while it runs."""
        return self._ended(0.0)

    def wait(self, timeout=None):
        """Return its exit status once it has ended."""
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.returncode

    def send_signal(self, number):
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has, and its status is on its way
                os.kill(self.pid, number)

    def kill(self):
        """End it, whatever it does."""
        self.send_signal(signal.SIGKILL)

    def communicate(self):
        """Close its pipes, and wait for its end."""
        for pipe in filter(None, (self.stdin, self.stdout)):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self.wait()

    def _ended(self, timeout):
        if self.returncode is None:
            self._line.settimeout(timeout)
            try:
                status = self._line.recv(_STATUS)
            except (BlockingIOError, TimeoutError):
                return None
            self._line.close()
            self.returncode = (
                int.from_bytes(status, "big", signed=True) if status else -signal.SIGKILL
            )
        return self.returncode


@cache
def _server(loads):
    """Start the one that they are forked from, once a session, and return where it listens."""
    path = Path(tempfile.mkdtemp(), "preloaded")
    alive, ours = os.pipe()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(64)
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        server = subprocess.Popen(
            [sys.executable, __file__, str(listening.fileno()), loads],
            env=os.environ | threads | {"RUST_LOG": "error"},
            stdin=alive,
            pass_fds=[listening.fileno()],
        )
    os.close(alive)

    def end():
        os.close(ours)  # at which it ends
        server.wait()
        path.unlink()
        path.parent.rmdir()

    atexit.register(end)
    return str(path)


# --- the process that they are forked from ---


_LOADED = {
    # torch._dynamo: for an optimizer's first step; torchft registers what a trainer uses
    "torch": ("torch", "torch._dynamo", "torchft"),
    "commands": ("cyclopts", "nats.js", "numpy", "rich.console", "rich.panel", "rich.table"),
}


def _serve(listening):
    """Fork a process per request, and report how each ended; return in the child."""
    lines = {}
    news, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    with selectors.DefaultSelector() as waiting:
        for file in (0, news, listening):
            waiting.register(file, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in waiting.select()]
            if 0 in ready:
                sys.exit()
            if news in ready:
                os.read(news, _REQUEST)
                _report_ends(lines)
            if listening in ready:
                line, request, files = _request_of(listening)
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for file in (news, wake):
                        os.close(file)
                    for other in (line, listening, *lines.values()):
                        other.close()
                    return request, files
                for file in files:
                    os.close(file)
                lines[pid] = line
                line.sendall(pid.to_bytes(_STATUS, "big"))


def _report_ends(lines):
    while lines:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with lines.pop(pid) as line:
            ended = os.waitstatus_to_exitcode(status)
            line.sendall(ended.to_bytes(_STATUS, "big", signed=True))


def _request_of(listening):
    line, _ = listening.accept()
    data, files, *_ = socket.recv_fds(line, _REQUEST, 3)
    while not data.endswith(b"\n"):
        data += line.recv(_REQUEST)
    return line, json.loads(data), files


def _become(request, files):
    """Run the requested script or module."""
    for place, file in enumerate(files):
        os.dup2(file, place)
        os.close(file)
    os.chdir(request["folder"])
    for name in os.environ.keys() - request["environment"].keys():
        del os.environ[name]
    os.environ.update(request["environment"])
    first, *rest = request["command"]
    if first == "-m":
        import runpy

        sys.argv, sys.path[0] = ["-m", *rest[1:]], request["folder"]
        runpy._run_module_as_main(rest[0])
        return
    sys.argv, sys.path[0] = [first, *rest], str(Path(first).parent)
    space = sys.modules["__main__"].__dict__
    space["__file__"] = first
    exec(compile(Path(first).read_text(), first, "exec"), space)


if __name__ == "__main__":
    for _name in _LOADED[sys.argv[2]]:
        importlib.import_module(_name)
    with socket.socket(fileno=int(sys.argv[1])) as _listening:
        _asked = _serve(_listening)
    _become(*_asked)
