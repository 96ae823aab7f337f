"""The command line; ``torchloom`` runs :func:`main`.

Importing this loads neither cyclopts nor rich, so that a missing extra is one clear line.
"""

import errno
import logging
import os
import select
import sys
from contextlib import suppress
from typing import TextIO

from torchloom_core.cli.streams import drop_output, print_stand_ins
from torchloom_core.floor.errors import TorchloomError
from torchloom_core.floor.plain_text import printable

_USAGE = 2
_UNWRITTEN = 4
_NO_MEMORY = 9
_INTERRUPTED = 130
_TERMINATED = 143
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_EXTRA_OF = {
    **dict.fromkeys(("google", "grpc", "starlette", "uvicorn"), "lighthouse"),
    **dict.fromkeys(("jinja2", "joblib", "markupsafe", "matplotlib", "pandas"), "evaluate"),
    **dict.fromkeys(("safetensors", "scipy", "sklearn", "skops", "statsmodels"), "predictors"),
    "cryptography": "tls",
    "opentelemetry": "tracing",
    "prometheus_client": "metrics",
    "ray": "ray",
    "tensorboardX": "tensorboard",
    "torch": "torch",
    "wandb": "wandb",
    "websockets": "dashboard",
}
"""Modules of other extras than ``server``."""
_OWN = ("torchloom_core", "torchloom_policies", "torchloom_predictors", "torchloom_threadlet")


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived; handled like Ctrl-C."""


def main() -> None:
    """Run the command in ``sys.argv`` and exit with its status."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before the start
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open until exit
        print_stand_ins(getattr(sys, name))
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    try:
        status = _run([_in_utf8(word) for word in sys.argv[1:]])
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of stdout may stop early, as `head` does; an unwritable stderr is an error.
        status = 0 if _reader_has_left(sys.stdout) else _UNWRITTEN
        drop_output(sys.stdout, sys.stderr)
    except UnicodeDecodeError as error:
        shown = os.fsdecode(error.object).encode(errors="backslashreplace").decode()
        status = _fail(f"need arguments in UTF-8, was {shown}", _USAGE)
    except OSError as error:
        if error.errno is None or isinstance(error, ConnectionError):
            raise
        status = _fail(_failed(error), _UNWRITTEN)
    except MemoryError as error:
        status = _fail(f"not enough memory{f': {error}' if str(error) else ''}", _NO_MEMORY)
    sys.exit(status)


def _in_utf8(word: str) -> str:
    """Return an argument decoded as UTF-8, whatever the locale, or raise UnicodeDecodeError."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return os.fsencode(word).decode()
    return word


def _failed(error: OSError) -> str:
    """Return a message with the file of the error, or that the output failed."""
    if error.filename is not None:
        place = printable(str(error.filename))
        return f"{place}: cannot be read or written: {error.strerror}"
    if error.errno in _FULL:
        drop_output(sys.stdout)
        return f"cannot write the output: {error.strerror}"
    return f"operating system error: {error.strerror}"


def _run(arguments: list[str]) -> int:
    try:
        from cyclopts import CycloptsError

        from torchloom_core.cli.app import app
        from torchloom_core.cli.installed_commands import add_installed
    except ModuleNotFoundError as error:
        return _missing(error)
    except KeyboardInterrupt:
        return _INTERRUPTED
    try:
        add_installed(arguments)
        status = app(
            arguments, exit_on_error=False, print_error=False, result_action="return_value"
        )
    except CycloptsError as error:
        return _fail(" ".join(str(error).split()), _USAGE)
    except TorchloomError as error:
        return _fail(str(error), error.exit_code)
    except ImportError as error:
        return _missing(error)
    except Terminated:
        return _TERMINATED
    except KeyboardInterrupt:
        return _INTERRUPTED
    return int(status or 0)


def _missing(error: ImportError) -> int:
    """Fail with the extra that a missing module comes with; our own modules raise."""
    name = error.name or getattr(error.__cause__, "name", None)
    if not name or name.startswith(_OWN):
        raise error
    extra = _EXTRA_OF.get(name.partition(".")[0], "server")
    return _fail(f'{name} is not installed: pip install "torchloom[{extra}]"', 1)


def _fail(message: str, status: int) -> int:
    lines = "\n".join(map(printable, message.split("\n")))  # an error may have several lines
    with suppress(OSError):  # stderr is closed: only the status is left
        sys.stderr.write(f"torchloom: {lines}\n")
    return status


def _reader_has_left(stream: TextIO) -> bool:
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
