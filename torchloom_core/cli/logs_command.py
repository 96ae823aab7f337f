"""``torchloom logs``: what trainers have logged, all of them on one axis."""

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from torchloom_core.cli.options import AsJson, ConfigPath, Last
from torchloom_core.cli.output import console, print_json, warn
from torchloom_core.cli.recorded_lines import (
    Place,
    followed,
    local_time,
    recorded,
    trajectory_root,
)
from torchloom_core.plain_text import printable
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.messages import LOG

# The reader brings pyarrow, which `torchloom --help` should not wait for.
if TYPE_CHECKING:
    from torchloom_core.trajectory.layout import Line

_LOUDNESS = ("debug", "info", "warning", "error", "critical")

_WHY_NONE = (
    "trainers send what they log from TORCHLOOM_TRAINER_LOG and the knob log_level on, warnings "
    "unless these say otherwise"
)

Level = Literal["debug", "info", "warning", "error", "critical"]


def logs(
    trajectory: Path | None = None,
    /,
    *,
    worker: str | None = None,
    node: str | None = None,
    level: Level = "debug",
    last: Last = None,
    follow: Annotated[bool, Parameter(alias="-f", negative="")] = False,
    json: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Print what trainers have logged, the oldest first.

    How loud a line has to be that it comes this far, the trainer's TORCHLOOM_TRAINER_LOG says, and
    the knob log_level.

    Parameters
    ----------
    trajectory
        A trajectory's folder; this run's unless given.
    worker
        Only of this worker.
    node
        Only of workers on this node.
    level
        Only what is so loud, or louder.
    last
        Only so many lines.
    follow
        Go on with what is still to come, until interrupted.
    config
        Config file; torchloom.toml in this folder unless given.
    """
    folder = trajectory_root(trajectory, config)
    wanted = _Wanted(worker, node, level)
    recent: deque[tuple[Line, dict[str, Any]]] = deque(maxlen=last)
    printed = Place(0, 0, 0)
    for place, line in recorded(folder):
        printed = place
        fields = wanted.fields(line)
        if fields is not None:
            recent.append((line, fields))
    for line, fields in recent:
        _print(line, fields, json)
    if not recent and not (follow or json):
        asked = " that fits" if worker or node or level != "debug" else ""
        warn(f"nothing{asked} is on record in {folder}: {_WHY_NONE}")
    if follow:
        for place, line in followed(folder):
            fields = wanted.fields(line)
            if place > printed and fields is not None:
                _print(line, fields, json)


class _Wanted:
    """Knows on which node each worker was, by what the record has said so far."""

    def __init__(self, worker: str | None, node: str | None, level: Level) -> None:
        self._worker, self._node = worker, node
        self._levels = _LOUDNESS[_LOUDNESS.index(level) :]
        self._node_of: dict[str, str] = {}

    def fields(self, line: "Line") -> dict[str, Any] | None:
        """Return what a line of a log says, None of any other line and of one not asked for."""
        if line.kind not in ("hello", "note"):
            return None
        try:
            body = msgspec.json.decode(line.body, type=dict[str, Any])
        except UNREADABLE:
            return None
        if line.kind == "hello":
            self._node_of[line.worker] = str(body.get("node", ""))
            return None
        fields = body.get("fields")
        if body.get("kind") != LOG or not isinstance(fields, dict):
            return None
        level = fields.get("level")
        quiet = level in _LOUDNESS and level not in self._levels
        of_another = self._worker not in (None, line.worker)
        elsewhere = self._node not in (None, self._node_of.get(line.worker))
        return None if quiet or of_another or elsewhere else fields


def _print(line: "Line", fields: dict[str, Any], json: bool) -> None:
    if json:
        print_json({"ts_ns": line.ts_ns, "worker": line.worker, **fields})
        return
    dropped = f" ({fields['dropped']} lines before it were dropped)" if "dropped" in fields else ""
    head = f"{local_time(line.ts_ns)} {line.worker} {fields.get('level', '-')}"
    first, *more = str(fields.get("text", "")).splitlines() or [""]
    console().print(
        printable(f"{head} {fields.get('logger', '-')}: {first}{dropped}"), markup=False
    )
    for text in more:
        console().print(printable(f"    {text}"), markup=False)
