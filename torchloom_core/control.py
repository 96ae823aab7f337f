"""What a person can ask of a running Weaver, and what it answers.

Every verb is a NATS request on ``tl.ctl.<run>.<verb>`` with a JSON body; the command line and
a plain ``nats req`` send the same ones. ``status`` and ``knobs`` only read; the others become
a :class:`~torchloom_core.requests.Request` to the kernel and are on the record.

==================  =======================================  ==========================
verb                body                                     answer
==================  =======================================  ==========================
``status``          empty                                    :class:`Status`
``knobs``           empty                                    :class:`KnobTable`
``knob.set``        :class:`KnobSet`                         :class:`Answer`
``knob.unset``      :class:`KnobUnset`                       :class:`Answer`
``propose``         ``{"action": {"kind": ..., ...}}``       :class:`Answer`
``approve``         ``{"proposal": id}``                     :class:`Answer`
``actions.stop``    empty                                    :class:`Answer`
``actions.resume``  empty                                    :class:`Answer`
==================  =======================================  ==========================
"""

import msgspec

from torchloom_core.decisions import KnobDesired
from torchloom_core.messages import KnobSpec, KnobValue


class KnobSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set a knob on one worker, or on all that have it when ``worker`` is absent."""

    knob: str
    value: KnobValue
    worker: str | None = None


class KnobUnset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Want no value of a knob any more, of one worker or, when ``worker`` is absent, of any."""

    knob: str
    worker: str | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a request; ``ids`` are the commands it led to."""

    ok: bool
    text: str
    ids: tuple[str, ...] = ()


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the live table; an age is null before the worker's first telemetry."""

    worker: str
    group: str
    node: str
    rack: str
    state: str
    step: int
    incarnation: int
    heartbeat_age_s: float | None
    progress_age_s: float | None
    knobs: dict[str, KnobValue] = {}
    metrics: dict[str, float] = {}
    hazards: dict[str, float] = {}


class FlightStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One command on its way."""

    id: str
    worker: str
    verb: str
    status: str
    age_s: float


class PluginStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One active policy or predictor."""

    name: str
    kind: str
    state: str
    detail: str = ""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A proposal that waits for a person's approval."""

    proposal: str
    policy: str
    action: str
    target: str
    reason: str


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The run at one moment."""

    run: str
    epoch: int
    ts_ns: int
    stopped: bool
    dry_run: bool
    ticks: int
    malformed: int
    workers: tuple[WorkerStatus, ...] = ()
    flights: tuple[FlightStatus, ...] = ()
    plugins: tuple[PluginStatus, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    cordoned: tuple[str, ...] = ()
    cordoned_until_ns: dict[str, int] = {}
    trajectory: str = ""


class KnobTable(msgspec.Struct, frozen=True, kw_only=True):
    """Every knob of the run: what it is, what it should be, and what it is where."""

    specs: tuple[KnobSpec, ...] = ()
    desired: tuple[KnobDesired, ...] = ()
    values: dict[str, dict[str, KnobValue]] = {}
