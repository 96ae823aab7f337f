"""``torchloom logs``: the log lines of all trainers, merged by time."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import msgspec
from cyclopts import Parameter

from torchloom_core.cli.options import AsJson, ConfigPath, Last
from torchloom_core.cli.output import console, print_json, warn
from torchloom_core.cli.recorded_lines import local_time, selected, trajectory_root
from torchloom_core.floor.plain_text import printable
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.messages import LOG

# The reader imports pyarrow, which `torchloom --help` should not wait for.
if TYPE_CHECKING:
    from torchloom_core.live.trajectory.layout import Line

_WHY_NONE = (
    "trainers send log lines from the level in TORCHLOOM_TRAINER_LOG or the knob log_level on; "
    "default: warning"
)

Level = Literal["debug", "info", "warning", "error", "critical"]
_LEVELS = get_args(Level)


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
    """Print the trainers' log lines, oldest first.

    A trainer sends lines from the level in TORCHLOOM_TRAINER_LOG or the knob log_level on.

    Parameters
    ----------
    trajectory
        Folder of a trajectory. Default: that of this run.
    worker
        Print only lines of this worker.
    node
        Print only lines of workers on this node.
    level
        Print only lines of this level or above.
    last
        Print only this many of the newest lines.
    follow
        Keep printing new lines until interrupted.
    """
    folder = trajectory_root(trajectory, config)
    select = _Filter(worker, node, level).fields
    is_empty = True
    for _, line, fields in selected(folder, select, last, follow):
        is_empty = False
        _print(line, fields, json)
    if is_empty and not json:
        matching = "matching " if worker or node or level != "debug" else ""
        warn(f"no {matching}log lines in {folder}: {_WHY_NONE}")


class _Filter:
    """Select log lines by worker, node and level; tracks each worker's node by its hello."""

    def __init__(self, worker: str | None, node: str | None, level: Level) -> None:
        self._worker, self._node = worker, node
        self._levels = _LEVELS[_LEVELS.index(level) :]
        self._node_of: dict[str, str] = {}

    def fields(self, line: "Line") -> dict[str, Any] | None:
        """Return the fields of a selected log line, None for any other record."""
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
        too_low = level in _LEVELS and level not in self._levels
        of_another = self._worker not in (None, line.worker)
        elsewhere = self._node not in (None, self._node_of.get(line.worker))
        return None if too_low or of_another or elsewhere else fields


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
