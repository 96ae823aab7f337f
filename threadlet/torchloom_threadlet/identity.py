"""The identity of this process as a worker, and its Weaver: from arguments or the environment."""

import functools
import itertools
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict, Unpack

import msgspec

from torchloom_core.floor.errors import MessageError
from torchloom_core.wire.codec import MAX_MESSAGE_BYTES, decode_json
from torchloom_core.wire.limits import MAX_FIELDS, MAX_NAME, MAX_RANK, MAX_SHORT_TEXT
from torchloom_core.wire.messages import JoinFile
from torchloom_core.wire.placement import TRAINER, Placement
from torchloom_threadlet.cleaning import field_name, name, text, whole

DEFAULT_JOIN_PATH = Path(".torchloom/join.json")

_logger = logging.getLogger(__name__)
_LOOK_WAITS_S = (0.2, 3.0)
_RANK_DIGITS = 10
_STANDBY = "standby"
_RANK_VARIABLES = ("TORCHLOOM_RANK", "RANK")
_attachments = itertools.count()

Join = tuple[Path, JoinFile | None]
"""The path of ``join.json``, and its content; None: the Weaver has not written it yet."""


class PlacementArguments(TypedDict, total=False):
    """What a script may say of its worker's placement; the environment gives the rest.

    Attributes
    ----------
    role : str
        The program that this worker runs, else ``TORCHLOOM_ROLE``, else ``trainer``. The groups of
        other roles get the role before their name: group 0 of ``rollout`` is ``rollout-0``.
    group : str
        Its replica group, else ``TORCHLOOM_GROUP`` or ``REPLICA_GROUP_ID``.
    rank : int
        Its number in the group, else ``TORCHLOOM_RANK`` or ``RANK``.
    stage, shard : int
        Its stage of a pipeline and shard of a layer, else ``TORCHLOOM_STAGE``,
        ``TORCHLOOM_SHARD``.
    node, rack : str
        Its node, else ``TORCHLOOM_NODE`` or the host's name; its rack, else ``TORCHLOOM_RACK``.
    standby : bool
        Whether it is a standby, else whether ``TORCHLOOM_ROLE`` is ``standby``, which is a standby
        of the trainers, or ``TORCHLOOM_STANDBY`` is 1.
    """

    role: str | None
    group: str | None
    rank: int | None
    stage: int | None
    shard: int | None
    node: str | None
    rack: str | None
    standby: bool | None


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's id, placement and incarnation.

    Attributes
    ----------
    placement : Placement
        Without the name of the run, which the Weaver's ``join.json`` has.
    standby : bool
        Whether it is a standby.
    unset : str
        What to set so that two processes do not get one name: the rank or the group, if neither
        an argument nor the environment sets it; else empty.
    """

    worker: str
    incarnation: int
    placement: Placement
    labels: dict[str, str | float]
    standby: bool
    unset: str = ""


def identify(
    environment: Mapping[str, str] = os.environ, **given: Unpack[PlacementArguments]
) -> Identity:
    """Return this process's identity; the environment gives what no argument does.

    Raises
    ------
    TypeError
        If an argument is none of :class:`PlacementArguments`.
    """
    if unknown := given.keys() - PlacementArguments.__annotations__.keys():
        need = ", ".join(PlacementArguments.__annotations__)
        raise TypeError(f"need {need}, was {', '.join(sorted(unknown))}")
    unset, rank = "", given.get("rank")
    group = (
        given.get("group")
        or environment.get("TORCHLOOM_GROUP")
        or environment.get("REPLICA_GROUP_ID")
    )
    if not group:
        group, unset = "g0", "no group is set: set TORCHLOOM_GROUP, or group= in attach()"
    if rank is None and not any(map(environment.get, _RANK_VARIABLES)):
        unset = "no rank is set: set RANK or TORCHLOOM_RANK, or rank= in attach()"
    rank = _number("rank", rank, environment, *_RANK_VARIABLES)
    role, standby = _role(given.get("role"), given.get("standby"), environment)
    group = group if role == TRAINER else f"{role}-{group}"
    group = name(group, "group", MAX_NAME - len(f"-{rank}"))
    rack = given.get("rack")
    rack = rack if rack is not None else environment.get("TORCHLOOM_RACK", "")
    return Identity(
        worker=f"{group}-{rank}",
        incarnation=_incarnation(),
        placement=Placement(
            run="",
            role=role,
            group=group,
            rank=rank,
            stage=_number("stage", given.get("stage"), environment, "TORCHLOOM_STAGE"),
            shard=_number("shard", given.get("shard"), environment, "TORCHLOOM_SHARD"),
            node=own_node(given.get("node"), environment),
            rack=name(rack, "rack") if rack else "",
        ),
        labels=_labels(environment.get("TORCHLOOM_LABELS", "")),
        standby=standby,
        unset=unset,
    )


def own_node(given: str | None, environment: Mapping[str, str]) -> str:
    """Return the name of this machine: as given, else ``TORCHLOOM_NODE``, else the host's."""
    node = given or environment.get("TORCHLOOM_NODE")
    return name(node or socket.gethostname() or "unknown", "node")


def _role(
    role: str | None, standby: bool | None, environment: Mapping[str, str]
) -> tuple[str, bool]:
    """Return the role, and whether the worker is a standby."""
    variable = environment.get("TORCHLOOM_ROLE", "")
    if standby is None:
        standby = variable == _STANDBY or environment.get("TORCHLOOM_STANDBY") == "1"
    role = role or (variable if variable != _STANDBY else "") or TRAINER
    return name(role, "role"), standby


def find_join(
    path: str | os.PathLike[str] | None = None, environment: Mapping[str, str] = os.environ
) -> Join | None:
    """Return the path of ``join.json`` and its content, or None after a log line with the reason.

    A path from the argument or the environment may be written later, since trainers and Weaver
    often start at the same time.
    """
    named = path or environment.get("TORCHLOOM_JOIN")
    source = Path(named) if named else DEFAULT_JOIN_PATH
    if not named and _is_missing(source):
        _log_inert(source.absolute())
        return None
    join = read_join(source)
    if join is None and not named:
        _logger.warning("torchloom is inert: %s is not a valid join.json", source)
        return None
    return source.absolute(), join


def _is_missing(source: Path) -> bool:
    try:
        source.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):  # a ValueError: of a path with a null character
        return False
    return False


@functools.cache  # logged once in a process, however often it attaches
def _log_inert(source: Path) -> None:
    _logger.warning(
        "torchloom is inert: %s does not exist; to connect, set TORCHLOOM_JOIN to the Weaver's "
        "join.json",
        source,
    )


def read_join(source: Path) -> JoinFile | None:
    """Return the join file at ``source``, or None if it is missing or invalid."""
    try:
        with source.open("rb") as file:
            return decode_json(JoinFile, file.read(MAX_MESSAGE_BYTES + 1), "join.json")
    except (OSError, ValueError, MessageError):  # a ValueError: of a path with a null character
        return None


def wait_for_join(source: Path, stopped: threading.Event) -> JoinFile | None:
    """Return the join file once it exists, or None once ``stopped`` is set."""
    wait_s, longest_s = _LOOK_WAITS_S
    while not stopped.wait(wait_s):
        join = read_join(source)
        if join is not None:
            return join
        wait_s = min(1.5 * wait_s, longest_s)
    return None


def _labels(pairs: str) -> dict[str, str | float]:
    """Return the labels of a text such as ``model=H100,age_years=2``; numbers become floats."""
    labels: dict[str, str | float] = {}
    for part in filter(None, map(str.strip, pairs.split(","))):
        key, is_set, label = map(str.strip, part.partition("="))
        if not (key and is_set and label) or len(labels) == MAX_FIELDS:
            _logger.warning(
                "TORCHLOOM_LABELS: need at most %d of NAME=VALUE, was %.80r; ignored",
                MAX_FIELDS,
                part,
            )
            continue
        try:
            number = float(label)
        except ValueError:
            number = math.nan
        labels[field_name(key)] = number if math.isfinite(number) else text(label, MAX_SHORT_TEXT)
    return labels


def _number(what: str, given: int | None, environment: Mapping[str, str], *variables: str) -> int:
    """Return a rank, stage or shard; 0 after a warning where it is no such number."""
    if given is not None:
        if 0 <= whole(given) <= MAX_RANK:
            return whole(given)
        text = "%s: need a number from 0 to %d, was %.80r; using 0"
        _logger.warning(text, what, MAX_RANK, given)
        return 0
    number, wrong = 0, list[str]()
    for variable in variables:
        value = environment.get(variable, "")
        if value.isdecimal() and len(value) <= _RANK_DIGITS and int(value) <= MAX_RANK:
            number = int(value)
            break
        if value:
            wrong.append(variable)
    for variable in wrong:
        need = f"need a whole number of at most {MAX_RANK}"
        value = environment[variable]
        _logger.warning("%s: %s, was %.80r; using %s %d", variable, need, value, what, number)
    return number


def _incarnation() -> int:
    """Return the start of this process in ms; a second attach in it is another incarnation."""
    if next(_attachments):
        return time.time_ns() // 1_000_000
    try:
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started_s = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
    except (OSError, ValueError, IndexError, AttributeError):
        age_s = time.process_time()
    return round((time.time() - age_s) * 1000)
