"""The kernel's inputs, except telemetry, and the state that survives a restart. All are recorded.

Also inputs: worker events and acks (:mod:`torchloom_core.wire.messages`, ``commands``), people's
requests (:mod:`torchloom_core.wire.requests`) and the lighthouse's view
(:mod:`torchloom_core.wire.steering`).
"""

from typing import Literal

import msgspec

from torchloom_core.wire.commands import Ack, Command
from torchloom_core.wire.decisions import KnobDesired, Reply, Verdict
from torchloom_core.wire.limits import Count, Int64, LaunchId
from torchloom_core.wire.links import Link
from torchloom_core.wire.messages import Exit, Hello, Note
from torchloom_core.wire.plans import Flight, Granted, Plan, Watch
from torchloom_core.wire.programs import ProgramSeen
from torchloom_core.wire.requests import Request
from torchloom_core.wire.steering import LighthouseView
from torchloom_core.wire.suspensions import SuspensionChanged


class Tick(msgspec.Struct, frozen=True, kw_only=True, tag="tick"):
    """A tick of the clock: policies are called."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True, tag="forecast"):
    """A predictor's answer: the probability that a worker fails within ``horizon_s``.

    Attributes
    ----------
    id : str
        The id of the :class:`ForecastWanted` that it answers.
    predictor : str
        The name of the predictor.
    horizon_s : float
        How far ahead it looks, seconds.
    hazard : dict of str to float
        Worker to probability in [0, 1]; an absent worker was not judged.
    why : dict of str to str
        Worker to one sentence with the reason, if there is one.
    latency_s : float
        How long the predictor took, seconds; a backtest delays the forecast by it.

    Examples
    --------
    >>> from torchloom_core.plugin import Forecast
    >>> from torchloom_core.testing import view_of
    >>> forecast = Forecast(id="f1", predictor="trend", horizon_s=600.0, hazard={"w1": 0.3})
    >>> view_of(workers=2, forecasts=[forecast]).hazard("trend")
    array([nan, 0.3])
    """

    id: str
    predictor: str
    horizon_s: float
    hazard: dict[str, float]
    why: dict[str, str] = {}
    latency_s: float = 0.0


class PredictorFailed(msgspec.Struct, frozen=True, kw_only=True, tag="predictor_failed"):
    """A predictor raised, hung or returned an invalid result, and is quarantined."""

    predictor: str
    rule: str
    detail: str


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One observed fault: an unexpected exit, a hang, an XID.

    Attributes
    ----------
    worker : str
        The worker there, empty if there was none.
    node : str
        The node where it happened, empty if unknown.
    kind : str
        The kind of fault, such as ``exit``, ``hang`` or ``xid``.
    ts_ns : int
        When it happened, ns since the epoch.
    id : str
        The id of the fault; a second report with the same id is ignored.
    fatal : bool
        Whether it ended or blocked the process there; an XID may be a mere warning.

    Examples
    --------
    >>> from torchloom_core.plugin import Fault
    >>> from torchloom_core.testing import view_of
    >>> fault = Fault(worker="", node="n1", kind="xid", ts_ns=1_700_000_000 * 10**9, id="f1")
    >>> view = view_of(workers=2, faults=[fault])
    >>> view.faults_of["n1"] == (fault,), fault.place
    (True, 'n1')
    """

    worker: str
    node: str
    kind: str
    ts_ns: int
    id: str
    fatal: bool = True

    @property
    def place(self) -> str:
        """The node, or the worker if its node is unknown."""
        return self.node or self.worker


class NodeFault(msgspec.Struct, frozen=True, kw_only=True, tag="node_fault"):
    """A node fault from another source than a worker: a health check, a recorded trace.

    ``ts_ns`` is when it happened, which may be long before the report; ``fatal`` whether it
    ended the processes there.
    """

    node: str
    kind: str
    ts_ns: int
    id: str
    fatal: bool = True


# --- state that survives a restart ----------------------------------------------------------------


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the request with the sender's id ``sent_as``; ``number`` orders them."""

    sent_as: str
    number: int
    reply: Reply


class Launched(msgspec.Struct, frozen=True, kw_only=True):
    """A launch whose workers belong to the run's present job."""

    launch: LaunchId


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel's state that must survive a restart of the Weaver.

    ``faults`` are the newest ones. A node of ``cordoned`` without an entry in
    ``cordoned_until_ns`` is cordoned without an end.
    """

    stopped: bool = False
    flights: tuple[Flight, ...] = ()
    plans: tuple[Plan, ...] = ()
    grants: tuple[Granted, ...] = ()
    desired: tuple[KnobDesired, ...] = ()
    cordoned: tuple[str, ...] = ()
    cordoned_until_ns: dict[str, int] = {}
    faults: tuple[Fault, ...] = ()
    answers: tuple[Answered, ...] = ()
    watches: tuple[Watch, ...] = ()
    links: tuple[Link, ...] = ()
    launches: tuple[Launched, ...] = ()
    suspensions: tuple[SuspensionChanged, ...] = ()


class Backlog(msgspec.Struct, frozen=True, kw_only=True, tag="backlog"):
    """The Weaver lags behind the reports of workers, or was down.

    It has read all reports before ``taken_until_ns``; None: it has caught up.
    """

    taken_until_ns: int | None


class Withheld(msgspec.Struct, frozen=True, kw_only=True, tag="withheld"):
    """The Weaver withdrew these commands before it sent them: no worker has one."""

    commands: tuple[str, ...]


DeliveryResult = Literal["delivered", "retrying", "given_up", "dropped", "dry_run"]


class DeliveryStatus(msgspec.Struct, frozen=True, kw_only=True, tag="delivery_status"):
    """What became of an event that an effector subscribed to.

    ``delivery`` is ``e<epoch>.<seq>.<n>``, the event's place in the record; ``detail`` what was
    done, in dry run what would have been sent, or the error. After ``retrying``, at the first
    failed attempt, another one follows.
    """

    effector: str
    delivery: str
    result: DeliveryResult
    detail: str = ""


class Recovered(msgspec.Struct, frozen=True, kw_only=True, tag="recovered"):
    """The Weaver (re)started under a new epoch, with the state of the last one.

    ``unsent`` are commands that the last one recorded as issued, and ``unstarted`` verdicts that
    it recorded as granted, before it died without storing and sending them.
    """

    epoch: int
    control: Control = Control()
    unsent: tuple[Command, ...] = ()
    unstarted: tuple[Verdict, ...] = ()


class RecordingGap(msgspec.Struct, frozen=True, kw_only=True, tag="recording_gap"):
    """Inputs that are missing in the record because the trajectory could not be written.

    ``first`` to ``last`` are their numbers, telemetry included; they were received from
    ``first_ns`` to ``last_ns``. ``why`` is the error of the file system.
    """

    first: Count
    last: Count
    first_ns: Int64
    last_ns: Int64
    why: str


class Noticed(msgspec.Struct, frozen=True, kw_only=True, tag="noticed"):
    """What the Weaver itself has noticed: a disk that fills, or a worker that floods it."""

    kind: str
    text: str
    worker: str = ""


Input = (
    Hello
    | Exit
    | Note
    | Ack
    | Tick
    | Forecast
    | NodeFault
    | LighthouseView
    | PredictorFailed
    | Request
    | Withheld
    | Backlog
    | DeliveryStatus
    | Recovered
    | RecordingGap
    | Noticed
    | ProgramSeen
)
"""All inputs of the kernel except telemetry batches."""
