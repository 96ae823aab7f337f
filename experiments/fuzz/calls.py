"""Call the reader of a mutated file in a process that may die or hang, and check the result."""

import contextlib
import io
import logging
import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from found import Found, Show
from mutation import Mutator

from torchloom_core import cli
from torchloom_core.floor.errors import TorchloomError

_DEADLINE_S = 120.0
_SHOWN = 200

Case = tuple[Path, Callable[[], object]]
"""A file and its reader, which may raise only torchLoom's errors, each of one line."""


def fuzz_cases(
    found: Found,
    folder: Path,
    cases: Sequence[Case],
    mutator: Mutator,
    count: int,
    show: Show,
) -> None:
    """Mutate one file at a time, call its reader, and restore the file."""
    pool = _pool()
    slowest_s = 0.0
    try:
        for number in range(count):
            path, call = mutator.random.choice(cases)
            whole = path.read_bytes()
            path.write_bytes(mutator.file(path.suffix, whole))
            what = f"{number}, {path.relative_to(folder)}"
            began = time.monotonic()
            try:
                trouble = pool.submit(_run, call).result(_DEADLINE_S)
            except TimeoutError:
                found.hang(what)
                pool = _pool(pool)
            except BrokenProcessPool:
                found.death(what)
                pool = _pool(pool)
            else:
                if trouble:
                    found.traceback(f"{what}: {trouble}")
            slowest_s = max(slowest_s, time.monotonic() - began)
            path.write_bytes(whole)
            found.sent += 1
            show(found.sent)
    finally:
        _end(pool)
    found.numbers["slowest_s"] = round(slowest_s, 2)


def command(arguments: Sequence[str]) -> None:
    """Run a command of torchLoom's."""
    cli._run(list(arguments))


def run_command(arguments: Sequence[str]) -> tuple[int, str, str]:
    """Run a torchLoom command; return its status, stdout and stderr."""
    out, words = io.StringIO(), io.StringIO()
    log = logging.StreamHandler(words)
    log.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(log)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(words):
            status = cli._run(list(arguments))
    finally:
        logging.getLogger().removeHandler(log)
    return status, out.getvalue(), words.getvalue()


def must(arguments: Sequence[str]) -> None:
    """Run a command that has to succeed."""
    status, out, words = run_command(arguments)
    if status:
        raise RuntimeError(f"{' '.join(arguments)}: {out}{words}")


def _run(call: Callable[[], object]) -> str:
    """Return an error of a call that is not a message for users, empty if there is none."""
    words = io.StringIO()
    try:
        with contextlib.redirect_stdout(words), contextlib.redirect_stderr(words):
            call()
    except TorchloomError as error:
        return "" if "\n" not in str(error) else f"more than a line: {str(error)[:_SHOWN]}"
    except BaseException as error:  # noqa: BLE001 - any error is a finding
        place = traceback.extract_tb(error.__traceback__)[-3:]
        lines = " < ".join(f"{Path(p.filename).name}:{p.lineno}" for p in reversed(place))
        return f"{type(error).__name__}: {str(error)[:_SHOWN]} ({lines})"
    return "" if "Traceback" not in words.getvalue() else words.getvalue()[-_SHOWN:]


def _pool(old: ProcessPoolExecutor | None = None) -> ProcessPoolExecutor:
    if old is not None:
        _end(old)
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def _end(pool: ProcessPoolExecutor) -> None:
    for process in list((pool._processes or {}).values()):
        process.kill()
    pool.shutdown(wait=False, cancel_futures=True)
