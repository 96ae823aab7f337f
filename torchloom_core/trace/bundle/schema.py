"""What stands in a trace bundle ``NAME.tltrace/``: its manifest and one struct a row.

::

    NAME.tltrace/
    ├── manifest.json      obligatory
    ├── events.jsonl       obligatory: faults and what else happened
    ├── topology.jsonl     components, their parents, when they were there
    ├── jobs.jsonl         training jobs
    ├── placement.jsonl    which job's rank sat where, and when
    ├── actions.jsonl      what was done to components: drained, rebooted, replaced
    ├── inputs.jsonl       the kernel's inputs, where the bundle came from a trajectory
    └── telemetry/*.parquet

Times are int64 nanoseconds since the Unix epoch, UTC. ``t_event`` is when something happened,
``t_avail`` when anybody could know. Columns that are not named here are kept, in ``extra``.
"""

from typing import Any, Literal

import msgspec

from torchloom_core.wire.limits import Int64

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
"""Of a worker: what its link carries, each way. A trace that has it is one of bandwidth."""

Follows = Literal["component", "job", "fabric", "unknown"]
"""What a failure stays with when the job moves: the component, the job, the fabric."""


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the bundle, as it was when it was written."""

    sha256: str
    rows: int


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """How much was watched of one kind of component."""

    components: int
    component_days: float


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """``manifest.json``.

    Attributes
    ----------
    start_ns, end_ns : int
        The span that was watched; everything in the bundle lies in it.
    exposure : dict of str to Exposure
        Kind of component to how much of it was watched.
    load_dependent : tuple of str
        Metrics that depend on what ran on a component: of no use once the job sits elsewhere.
    files : dict of str to FileEntry
        Path in the bundle to its checksum.
    """

    name: str
    start_ns: Int64
    end_ns: Int64
    source: str
    licence: str
    synthetic: bool
    exposure: dict[str, Exposure] = {}
    load_dependent: tuple[str, ...] = ()
    files: dict[str, FileEntry] = {}
    notes: str = ""
    schema: int = SCHEMA_VERSION


class Component(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``topology.jsonl``: a part of the fleet, and while it was there.

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
    """``placement.jsonl``: ``rank`` of replica group ``group`` sat on ``component``."""

    job: str
    group: str
    rank: int
    component: str
    from_ns: Int64
    until_ns: Int64 | None = None
    extra: dict[str, Any] = {}


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``events.jsonl``: something happened to a component.

    Attributes
    ----------
    fatal : bool
        It ends the training process on the component: a failure.
    cause : str
        Id of the event it came from, such as a rack's power loss.
    follows : Follows
        What the failure would have stayed with, had the job moved away in time.
    t_resolved : int, optional
        When the component could be used again; None if that is not known.
    label : "certain" or "uncertain"
        An uncertain one is neither a positive nor a negative when predictors are scored.
    """

    id: str
    t_event: Int64
    t_avail: Int64
    component: str
    kind: str
    code: str = ""
    severity: str = ""
    fatal: bool = True
    cause: str = ""
    follows: Follows = "unknown"
    t_resolved: Int64 | None = None
    label: Literal["certain", "uncertain"] = "certain"
    extra: dict[str, Any] = {}


class ActionTaken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``actions.jsonl``: somebody did something to a component.

    ``kind`` is ``drain``, ``migrate``, ``reboot``, ``replace`` or a name of the source's own. A
    component that was drained from ``t_event`` to ``t_end`` is neither a positive nor a negative
    in the time after it: what would have happened was prevented.
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
