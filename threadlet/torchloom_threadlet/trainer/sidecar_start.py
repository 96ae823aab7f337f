"""How a sidecar is started: its interpreter, and its import path.

``sys.executable`` may be the application itself, which would only start a second time; and the
trainer's imports may be where no other interpreter finds them.
"""

import contextlib
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import torchloom_core
import torchloom_threadlet

SIDECAR_OF = "TORCHLOOM_SIDECAR_OF"
"""The environment variable that marks a sidecar: its trainer's process id."""

_MODULE = "torchloom_threadlet.sidecar"
_INTERPRETER = re.compile(r"(python|pypy|graalpy)[\d.]*[a-z]?(\.exe)?", re.IGNORECASE)
_MOST_OUTPUT_BYTES = 4096
_DYING_S = 0.5

# torchLoom's own path precedes the interpreter's packages, so that trainer and sidecar have the
# same version; the rest of the trainer's path only fills in what is missing.
_START = """
import os, sys
module, ours, others = sys.argv[1:4]
del sys.argv[1:4]
packages = ("site-packages", "dist-packages")
at = [os.path.basename(entry) in packages for entry in sys.path] + [True]
sys.path[at.index(True):at.index(True)] = ours.splitlines()
sys.path += [entry for entry in others.splitlines() if entry not in sys.path]
try:
    from importlib import import_module
    main = import_module(module + ".__main__").main
except Exception as error:
    try:
        print(f"{type(error).__name__}: {error}", flush=True)
    finally:  # also if the trainer has ended, and nobody reads
        os._exit(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
main()
"""

_logger = logging.getLogger(__name__)

# A child that another thread forks during a start would keep open a pipe whose end the start
# waits for; so a fork waits for the start, which takes a few milliseconds.
_starting = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_starting.acquire,
        after_in_parent=_starting.release,
        after_in_child=_starting.release,
    )


def find_interpreter(environment: Mapping[str, str] = os.environ) -> str:
    """Return the interpreter for a sidecar, or "" after a log line that says what to do."""
    named = environment.get("TORCHLOOM_PYTHON", "")
    if named:
        found = shutil.which(named)
        if found is None:
            _logger.warning(
                "torchloom is inert: TORCHLOOM_PYTHON: need a Python interpreter, was %r", named
            )
        return found or ""
    for candidate in _candidates():
        if _is_interpreter(candidate):
            return candidate
    _logger.warning(
        "torchloom is inert: found no Python interpreter for the sidecar (sys.executable is "
        "%r); set TORCHLOOM_PYTHON to a python%d.%d in which torchloom is installed",
        sys.executable,
        *sys.version_info[:2],
    )
    return ""


def start_sidecar(
    interpreter: str, descriptors: Sequence[int]
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a sidecar of this process, and return it with the socket to it.

    ``descriptors``: inherited: where the stacks are written, and a pidfd of this process; -1 for
    none.
    Raises OSError if the system cannot start a process.
    """
    arguments = [str(number) for number in (os.getpid(), *descriptors)]
    return start_beside(interpreter, _MODULE, arguments, descriptors)


def start_beside(
    interpreter: str, module: str, arguments: Sequence[str], descriptors: Sequence[int] = ()
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a package's ``main`` in a session of its own, and return it with the socket to it.

    Its first argument is the number of its end of the socket. Raises OSError.
    """
    ours, theirs = socket.socketpair()
    number = str(theirs.fileno())
    with theirs, _starting:
        try:
            process = subprocess.Popen(
                [interpreter, "-P", "-c", _START, module, *_paths(), number, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                pass_fds=(theirs.fileno(), *(number for number in descriptors if number >= 0)),
                start_new_session=True,
                env=os.environ | {SIDECAR_OF: str(os.getpid())},
            )
        except OSError:
            ours.close()
            raise
    return process, ours


def exit_reason(process: subprocess.Popen[bytes]) -> str:
    """Return how a sidecar ended by itself; "" if a signal ended it, or it still runs."""
    try:
        status = process.wait(_DYING_S)
    except subprocess.TimeoutExpired:
        return ""
    return "" if status < 0 else _last_line(process) or f"it ended with status {status}"


def _last_line(process: subprocess.Popen[bytes]) -> str:
    if process.stdout is None:
        return ""
    os.set_blocking(process.stdout.fileno(), False)  # another process may have it open
    output = process.stdout.read(_MOST_OUTPUT_BYTES) or b""
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _candidates() -> list[str]:
    name = "python{}.{}".format(*sys.version_info[:2])
    own = [] if getattr(sys, "frozen", False) else [sys.executable]
    base = getattr(sys, "_base_executable", "")
    own += [base] if base != sys.executable else []
    prefixes = (sys.exec_prefix, sys.base_exec_prefix)
    return [*own, *(str(Path(each, "bin", name)) for each in prefixes), shutil.which(name) or ""]


def _is_interpreter(candidate: str) -> bool:
    """Return whether a file looks like Python; running it could start the application again."""
    names = {os.path.basename(candidate), os.path.basename(os.path.realpath(candidate))}
    return any(map(_INTERPRETER.fullmatch, names)) and shutil.which(candidate) is not None


def _paths() -> tuple[str, str]:
    """Return torchLoom's path, and the rest of the import path, the script's folder last."""
    packages = (torchloom_core, torchloom_threadlet)
    ours = {os.path.dirname(os.path.dirname(os.path.abspath(str(p.__file__)))) for p in packages}
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    places = {os.path.dirname(os.path.abspath(script)) if script else ""}
    with contextlib.suppress(FileNotFoundError):  # the folder was removed
        places.add(os.getcwd())
    others = [entry for entry in sys.path if os.path.isabs(entry) and os.path.exists(entry)]
    others.sort(key=lambda entry: entry in places)
    return "\n".join(path for path in sorted(ours) if os.path.exists(path)), "\n".join(others)
