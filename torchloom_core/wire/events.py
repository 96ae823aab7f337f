"""What the kernel takes in beside telemetry, and everything it gives out.

Inputs: worker events and acks (:mod:`torchloom_core.wire.messages`), people's requests
(:mod:`torchloom_core.wire.requests`), :class:`Tick`, :class:`Forecast`, :class:`NodeFault`,
:class:`PredictorFailed`, :class:`Withheld`, :class:`Backlog`, :class:`Recovered`,
and what the lighthouse sees
(:mod:`torchloom_core.wire.steering`).
Outputs: the union :data:`Output`. Both are written to the trajectory as they pass.
"""

from typing import Annotated, Literal

import msgspec

from torchloom_core.clock import SECOND_NS
from torchloom_core.wire.actions import Action
from torchloom_core.wire.limits import Count, Int64, LaunchId, Text
from torchloom_core.wire.links import Link
from torchloom_core.wire.messages import (
    Ack,
    AckStatus,
    Command,
    Exit,
    Hello,
    KnobValue,
    KnobValues,
    Note,
)
from torchloom_core.wire.plans import Flight, Granted, Plan, Watch
from torchloom_core.wire.requests import Request
from torchloom_core.wire.steering import LighthouseView, Steer

Reason = Annotated[str, msgspec.Meta(max_length=10_000)]
"""Holds a predictor's whole sentence, and what a policy has to add."""

# --- proposals and verdicts -----------------------------------------------------------------


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy wants, and its price in expected useful GPU-seconds.

    Attributes
    ----------
    action : Action
        What is to be done.
    reason : str
        One sentence for a person.
    gain_gpu_s, cost_gpu_s : float
        What the action saves if the policy is right, and what it costs either way; both >= 0.
    confidence : float
        Probability in [0, 1] that the policy is right.
    cause : tuple of str
        Ids of the forecasts or notes it rests on.
    expires_s : float
        How long after the tick the proposal may still be granted, seconds: what a person
        has to approve it, where approval is asked for.

    Examples
    --------
    >>> from torchloom_core.plugin import Migrate, Proposal
    >>> proposal = Proposal(
    ...     action=Migrate(group="g1"),
    ...     reason="g1-0 is about to fail",
    ...     gain_gpu_s=4000.0,
    ...     cost_gpu_s=500.0,
    ...     confidence=0.25,
    ... )
    >>> proposal.net_gpu_s
    500.0
    """

    action: Action
    reason: Reason
    gain_gpu_s: float = 0.0
    cost_gpu_s: float = 0.0
    confidence: float = 1.0
    cause: Annotated[tuple[Text, ...], msgspec.Meta(max_length=1024)] = ()
    expires_s: float = 300.0

    @property
    def net_gpu_s(self) -> float:
        """Expected net gain, useful GPU-seconds."""
        return self.confidence * self.gain_gpu_s - self.cost_gpu_s


class Proposed(msgspec.Struct, frozen=True, kw_only=True, tag="proposed"):
    """A proposal on the record, with the id the kernel gave it."""

    id: str
    policy: str
    proposal: Proposal


class Verdict(msgspec.Struct, frozen=True, kw_only=True, tag="verdict"):
    """What the arbiter says to one proposal, and the rule that decided.

    ``propensity`` is the probability with which this arm, the action or the no-op, was taken.
    """

    proposal: str
    policy: str
    action: Action
    granted: bool
    rule: str
    reason: str
    net_gpu_s: float
    propensity: float = 1.0


class CommandStatus(msgspec.Struct, frozen=True, kw_only=True, tag="command_status"):
    """A command took a step in its life: issued, or what an ack or the clock said.

    ``incarnation``, the life of the worker that it is for, is told of a standby task alone.
    """

    command: str
    worker: str
    incarnation: int | msgspec.UnsetType = msgspec.UNSET
    status: Literal["issued"] | AckStatus
    verb: str
    cause: str
    step: int = -1
    detail: str = ""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag="outcome"):
    """What a granted action came to.

    ``result`` is ``done`` when every command was applied, ``undone`` when none was, and
    ``partial`` in between.
    """

    verdict: str
    policy: str
    action: Action
    result: Literal["done", "partial", "undone"]
    detail: str
    took_s: float

    @classmethod
    def of(cls, plan: Plan, result: str, detail: str, now_ns: int) -> "Outcome":
        """Return how a plan has ended."""
        return cls(
            verdict=plan.verdict,
            policy=plan.policy,
            action=plan.action,
            result=result,  # type: ignore[arg-type]
            detail=detail,
            took_s=(now_ns - plan.started_ns) / SECOND_NS,
        )

    @classmethod
    def never_started(cls, verdict: Verdict, why: str) -> "Outcome":
        """Return the outcome of what an earlier Weaver granted and never began."""
        return cls(
            verdict=verdict.proposal,
            policy=verdict.policy,
            action=verdict.action,
            result="undone",
            detail=why,
            took_s=0.0,
        )


class Judged(msgspec.Struct, frozen=True, kw_only=True, tag="judged"):
    """What a change did to the run, by its guard; one that ``hurt`` is set back to ``before``.

    ``hurt`` is None where that could not be judged, and ``text`` says why.
    """

    verdict: str
    hurt: bool | None
    text: str
    before: KnobValues


class PolicyFailed(msgspec.Struct, frozen=True, kw_only=True, tag="policy_failed"):
    """A policy broke its contract at a tick and is quarantined until the Weaver restarts."""

    policy: str
    rule: str
    detail: str


class Notice(msgspec.Struct, frozen=True, kw_only=True, tag="notice"):
    """Something a person should see: a worker came or went, a metric disappeared."""

    kind: str
    text: str
    worker: str = ""


class CordonOver(msgspec.Struct, frozen=True, kw_only=True, tag="cordon_over"):
    """A cordon has lasted its time: ``node`` may be used again."""

    node: str


class KnobDesired(msgspec.Struct, frozen=True, kw_only=True, tag="knob_desired"):
    """Since ``since_ns`` ``knob`` should have ``value``, on one worker or on all (``worker`` None).

    The value None takes a wish back: each worker keeps what it has. One that ``waits`` was wanted
    of an earlier job: nobody is given it until a person says so.
    """

    knob: str
    value: KnobValue | None
    worker: str | None = None
    since_ns: int = 0
    waits: Literal[True] | msgspec.UnsetType = msgspec.UNSET


class Issue(msgspec.Struct, frozen=True, kw_only=True, tag="issue"):
    """Send ``command``; repeated by a restarted Weaver for what was in flight."""

    command: Command


class Withdrawal(msgspec.Struct, frozen=True, kw_only=True, tag="recall"):
    """Take back a command that has not reached its worker yet: actions were stopped."""

    command: str
    worker: str


class PauseChanged(msgspec.Struct, frozen=True, kw_only=True, tag="pause_held"):
    """From now on the pause of ``verdict`` is in force.

    Empty: none is, after that of ``over`` has ended or came to nothing.
    """

    verdict: str
    over: str = ""


class ForecastWanted(msgspec.Struct, frozen=True, kw_only=True, tag="forecast_wanted"):
    """Run a predictor, off the loop, on the view of this tick."""

    id: str
    predictor: str


class InputFailed(msgspec.Struct, frozen=True, kw_only=True, tag="input_failed"):
    """The Weaver's own code failed at this input, and the Weaver ended; ``trace`` is where."""

    error: str
    trace: str


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag="reply"):
    """The answer to a person's request."""

    request: str
    ok: bool
    text: str
    ids: tuple[str, ...] = ()


# --- inputs that no worker sends ------------------------------------------------------------


class Tick(msgspec.Struct, frozen=True, kw_only=True, tag="tick"):
    """Time has passed; policies look at the fleet."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True, tag="forecast"):
    """A predictor's answer: the probability that a worker fails within ``horizon_s``.

    Attributes
    ----------
    id : str
        The id of the :class:`ForecastWanted` it answers.
    predictor : str
        Whose forecast it is.
    horizon_s : float
        How far ahead it looks, seconds.
    hazard : dict of str to float
        Worker to probability in [0, 1]; a worker that is absent was not judged.
    why : dict of str to str
        Worker to one sentence, where the predictor has something to say.
    latency_s : float
        How long the predictor took; live it is measured, a backtest charges it.

    Examples
    --------
    >>> from torchloom_core.plugin import Forecast
    >>> from torchloom_core.testing import view_of
    >>> said = Forecast(id="f1", predictor="trend", horizon_s=600.0, hazard={"w1": 0.3})
    >>> view_of(workers=2, forecasts=[said]).hazard("trend")
    array([nan, 0.3])
    """

    id: str
    predictor: str
    horizon_s: float
    hazard: dict[str, float]
    why: dict[str, str] = {}
    latency_s: float = 0.0


class PredictorFailed(msgspec.Struct, frozen=True, kw_only=True, tag="predictor_failed"):
    """A predictor raised, hung or returned garbage, and is quarantined."""

    predictor: str
    rule: str
    detail: str


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault that was seen: an unexpected exit, a hang, an XID.

    Attributes
    ----------
    worker : str
        Who sat there, empty if nobody did.
    node : str
        Where it happened, empty if that is not known.
    kind : str
        What it was, such as ``exit``, ``hang`` or ``xid``.
    ts_ns : int
        When it happened, ns since the epoch.
    id : str
        Its own, by which it is known again.
    fatal : bool
        Whether it ended, or held up, what ran there; an XID may be but a warning.

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
        """What it counts against: the node, or the worker where its node is unknown."""
        return self.node or self.worker


class NodeFault(msgspec.Struct, frozen=True, kw_only=True, tag="node_fault"):
    """A node had a fault, says somebody other than a worker: a health check, a recorded trace.

    ``ts_ns`` is when it happened, which may be long before it is told; ``fatal`` whether it
    ended what ran there.
    """

    node: str
    kind: str
    ts_ns: int
    id: str
    fatal: bool = True


# --- what survives a restart ----------------------------------------------------------------


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request that its sender gave the id ``sent_as``; ``number`` orders them."""

    sent_as: str
    number: int
    reply: Reply


class Launched(msgspec.Struct, frozen=True, kw_only=True):
    """A launch whose workers belong to the run's present job."""

    launch: LaunchId


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of the kernel that must outlive the Weaver's process.

    ``faults`` are the newest that are remembered. A node of ``cordoned``
    that has no entry in ``cordoned_until_ns`` is so until somebody uncordons it.
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


class Backlog(msgspec.Struct, frozen=True, kw_only=True, tag="backlog"):
    """The Weaver lags behind the reports of workers, or was away.

    It has taken in all that was reported before ``taken_until_ns``; None: it has caught up.
    """

    taken_until_ns: int | None


class Withheld(msgspec.Struct, frozen=True, kw_only=True, tag="withheld"):
    """The Weaver took these commands back before it had sent them: no worker can have one."""

    commands: tuple[str, ...]


class Recovered(msgspec.Struct, frozen=True, kw_only=True, tag="recovered"):
    """The Weaver (re)started under a new epoch, with what the last one left behind.

    ``unsent`` are commands that the last one had on record as issued, and ``unstarted`` verdicts
    that it had on record as granted, when it died before it could store and send them.
    """

    epoch: int
    control: Control = Control()
    unsent: tuple[Command, ...] = ()
    unstarted: tuple[Verdict, ...] = ()


class RecordingGap(msgspec.Struct, frozen=True, kw_only=True, tag="recording_gap"):
    """Inputs that are not on record, because the trajectory could not be written meanwhile.

    ``first`` to ``last`` are their numbers, telemetry included, and ``first_ns`` to ``last_ns``
    when they were received. ``why`` is the error of the file system.
    """

    first: Count
    last: Count
    first_ns: Int64
    last_ns: Int64
    why: str


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
    | Recovered
    | RecordingGap
)
"""Everything the kernel takes in, beside telemetry batches."""

Output = (
    Proposed
    | Verdict
    | CommandStatus
    | Outcome
    | Judged
    | PolicyFailed
    | Notice
    | CordonOver
    | KnobDesired
    | Issue
    | Withdrawal
    | PauseChanged
    | Steer
    | ForecastWanted
    | InputFailed
    | Reply
)
"""Everything the kernel gives out."""
