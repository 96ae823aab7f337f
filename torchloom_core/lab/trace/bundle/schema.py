"""The files of a trace bundle ``NAME.tltrace/``: its manifest, and a struct for each kind of row.

::

    NAME.tltrace/
    ├── manifest.json      required
    ├── events.jsonl       required: faults and other events
    ├── topology.jsonl     components, their parents, their time in service
    ├── jobs.jsonl         training jobs
    ├── placement.jsonl    the component of each rank of a job, over time
    ├── actions.jsonl      actions on components: drain, reboot, replace
    ├── inputs.jsonl       the kernel's inputs, in a bundle made from a trajectory
    └── telemetry/*.parquet

Times are int64 nanoseconds since the Unix epoch, UTC. ``t_event`` is when something happened,
``t_avail`` when it became known. Unknown columns are stored in ``extra``.
"""

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.floor.errors import TraceError
from torchloom_core.wire.limits import Int64
from torchloom_core.wire.placement import TRAINER

SCHEMA_VERSION = 1
SUFFIX = ".tltrace"

MANIFEST = "manifest.json"
EVENTS = "events.jsonl"
TOPOLOGY = "topology.jsonl"
JOBS = "jobs.jsonl"
PLACEMENT = "placement.jsonl"
ACTIONS = "actions.jsonl"
INPUTS = "inputs.jsonl"
TELEMETRY = "telemetry"

TELEMETRY_COLUMNS = ("t_event", "t_avail", "component", "metric", "value", "valid")
"""int64, int64, string, string, float64, bool; sorted by ``t_avail``, then ``t_event``."""

LINK_METRIC = "link_bytes_per_s"
"""Bandwidth of a worker's link, each way; a trace with it is a bandwidth trace."""

Follows = Literal["component", "job", "fabric", "unknown"]
"""Where a failure stays when the job moves: with the component, the job or the fabric."""


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Checksum and rows of one file of the bundle."""

    sha256: str
    rows: int


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """Number and observation time of one kind of component."""

    components: int
    component_days: float


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """``manifest.json``."""

    name: str
    start_ns: Int64
    end_ns: Int64
    """The recorded span; all rows lie in it."""
    source: str
    licence: str
    synthetic: bool
    exposure: dict[str, Exposure] = {}
    """By kind of component."""
    load_dependent: tuple[str, ...] = ()
    """Metrics that depend on the load of a component: invalid once the job runs elsewhere."""
    files: dict[str, FileEntry] = {}
    """Path in the bundle to its checksum."""
    notes: str = ""
    schema: int = SCHEMA_VERSION


class Component(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``topology.jsonl``: a component of the fleet, and its time in service.

    ``kind`` is ``gpu``, ``nic``, ``disk``, ``node``, ``switch``, ``rack`` or ``power``;
    ``parents`` are the components it fails with.
    """

    id: str
    kind: str
    parents: tuple[str, ...] = ()
    from_ns: Int64 | None = None
    until_ns: Int64 | None = None
    gpus: int = 0
    extra: dict[str, Any] = {}


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``jobs.jsonl``: one training job. ``end_ns`` is None, or ``censored``, if it went on."""

    id: str
    start_ns: Int64
    end_ns: Int64 | None = None
    censored: bool = False
    groups: int = 1
    nodes_per_group: int = 1
    gpus_per_node: int = 8
    step_s: float = 0.0
    checkpoint_s: float = 0.0
    restart_s: float = 0.0
    extra: dict[str, Any] = {}


class Placement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``placement.jsonl``: ``rank`` of replica group ``group`` ran on ``component``.

    ``role``, ``stage``, ``shard`` and ``generation`` are those of
    :class:`torchloom_core.wire.placement.Placement`.
    """

    job: str
    group: str
    rank: int
    component: str
    from_ns: Int64
    until_ns: Int64 | None = None
    role: str = TRAINER
    stage: int = 0
    shard: int = 0
    generation: int = 0
    extra: dict[str, Any] = {}


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``events.jsonl``: something happened to a component."""

    id: str
    t_event: Int64
    t_avail: Int64
    component: str
    kind: str
    code: str = ""
    severity: str = ""
    fatal: bool = True
    """It ends the training process on the component: a failure."""
    cause: str = ""
    """Id of the event that caused it, such as a rack's power loss."""
    follows: Follows = "unknown"
    """Where the failure would have happened, had the job moved away in time."""
    t_resolved: Int64 | None = None
    """When the component was usable again; None if unknown."""
    label: Literal["certain", "uncertain"] = "certain"
    """Uncertain events are not scored, neither as positives nor as negatives."""
    extra: dict[str, Any] = {}


class ActionTaken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``actions.jsonl``: an action on a component.

    ``kind`` is ``drain``, ``migrate``, ``reboot``, ``replace`` or a name of the source. After a
    drain from ``t_event`` to ``t_end`` the component is not scored: a failure may have been
    prevented.
    """

    id: str
    t_event: Int64
    t_avail: Int64
    component: str
    kind: str
    t_end: Int64 | None = None
    actor: str = ""
    reason: str = ""
    extra: dict[str, Any] = {}


Row = Component | Job | Placement | Event | ActionTaken

ROW_OF: dict[str, type[Any]] = {
    TOPOLOGY: Component,
    JOBS: Job,
    PLACEMENT: Placement,
    EVENTS: Event,
    ACTIONS: ActionTaken,
}
"""File name to the struct of its rows."""


_FIRST, _LAST = 1824, 2115
_FIRST_NS, _BEYOND_NS = (
    round(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * SECOND_NS for year in (_FIRST, _LAST + 1)
)


def refuse_far(place: object, start_ns: int, end_ns: int) -> None:
    """Raise TraceError, which begins with ``place``, if a span is outside these years."""
    if start_ns < _FIRST_NS or end_ns >= _BEYOND_NS:
        raise TraceError(
            f"{place}: need a span in the years {_FIRST} to {_LAST}, was {moment_text(start_ns)} "
            f"to {moment_text(end_ns)}"
        )
