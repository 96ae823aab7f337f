"""Which worker this process is, and where it finds its Weaver: arguments, then environment."""

import itertools
import logging
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from torchloom_core.messages import JoinFile
from torchloom_core.subjects import token

DEFAULT_JOIN_PATH = Path(".torchloom/join.json")

_logger = logging.getLogger(__name__)
_lives = itertools.count()


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who this worker is; ``standby`` says that it waits to be asked to join."""

    worker: str
    incarnation: int
    group: str
    rank: int
    node: str
    rack: str
    standby: bool


def identify(
    *,
    group: str | None = None,
    rank: int | None = None,
    node: str | None = None,
    rack: str | None = None,
    standby: bool | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Identity:
    """Return who this process is; what is not given is taken from the environment."""
    if group is None:
        group = environment.get("TORCHLOOM_GROUP") or environment.get("REPLICA_GROUP_ID") or "g0"
    if rank is None:
        rank = _whole_number(environment, "TORCHLOOM_RANK", "RANK")
    if standby is None:
        role = environment.get("TORCHLOOM_ROLE", "")
        standby = role == "standby"
        if role and not standby:
            _logger.warning("TORCHLOOM_ROLE: need standby or nothing, was %r; it trains", role)
    group = token(group)
    return Identity(
        worker=f"{group}-{rank}",
        incarnation=_incarnation(),
        group=group,
        rank=rank,
        node=token(node or environment.get("TORCHLOOM_NODE") or socket.gethostname()),
        rack=rack if rack is not None else environment.get("TORCHLOOM_RACK", ""),
        standby=standby,
    )


def find_join(
    path: str | os.PathLike[str] | None = None, environment: Mapping[str, str] = os.environ
) -> tuple[Path, JoinFile] | None:
    """Return ``join.json`` and where it lies, or None after one log line that says why not."""
    named = path or environment.get("TORCHLOOM_JOIN")
    source = Path(named) if named else DEFAULT_JOIN_PATH
    if not named and not source.exists():
        _logger.info(
            "torchloom is inert: there is no %s here; set TORCHLOOM_JOIN to the Weaver's join.json",
            source,
        )
        return None
    join = read_join(source)
    if join is None:
        _logger.warning("torchloom is inert: %s cannot be read as a join.json", source)
        return None
    return source.absolute(), join


def read_join(source: Path) -> JoinFile | None:
    """Return the join file at ``source``, or None if it is not there or is none."""
    try:
        return msgspec.json.decode(source.read_bytes(), type=JoinFile)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _whole_number(environment: Mapping[str, str], *names: str) -> int:
    for name in names:
        text = environment.get(name, "")
        if text.isdecimal():
            return int(text)
        if text:
            _logger.warning("%s: need a whole number, was %r", name, text)
    return 0


def _incarnation() -> int:
    """Return the start of this process in ms; a second attach in it is a life of its own."""
    if next(_lives):
        return time.time_ns() // 1_000_000
    try:
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started_s = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
    except (OSError, ValueError, IndexError, AttributeError):
        age_s = time.process_time()
    return round((time.time() - age_s) * 1000)
