"""The kernel's outputs: proposals, verdicts, outcomes, commands to send. All are recorded."""

from typing import Annotated, Literal

import msgspec

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.wire.actions import Action
from torchloom_core.wire.commands import AckStatus, Command
from torchloom_core.wire.limits import KnobValue, KnobValues, Text
from torchloom_core.wire.plans import Plan
from torchloom_core.wire.programs import ChangeWanted
from torchloom_core.wire.steering import Steer
from torchloom_core.wire.suspensions import SuspensionChanged

Reason = Annotated[str, msgspec.Meta(max_length=10_000)]
"""Long enough for a predictor's reason and a policy's own text."""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """An action that a policy proposes, with its gain and cost in useful GPU-seconds.

    Attributes
    ----------
    action : Action
        The proposed action.
    reason : str
        One sentence for a person.
    gain_gpu_s, cost_gpu_s : float
        What the action saves if the policy is right, and what it costs either way; both >= 0.
    confidence : float
        Probability in [0, 1] that the policy is right.
    cause : tuple of str
        Ids of the forecasts or notes that it is based on.
    expires_s : float
        How long after the tick the proposal may be granted, seconds; also the time that a person
        has to approve it.

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
    """The arbiter's decision on one proposal, and the rule that decided.

    ``propensity`` is the probability with which this arm, the action or the no-op, was taken.

    Examples
    --------
    >>> from torchloom_core.plugin import CordonNode, Verdict
    >>> verdict = Verdict(
    ...     proposal="p1.1",
    ...     policy="lemon_nodes",
    ...     action=CordonNode(node="n1"),
    ...     granted=False,
    ...     rule="cordoned_share",
    ...     reason="need at most 10% of 20 nodes cordoned, would be 3",
    ...     net_gpu_s=40.0,
    ... )
    >>> verdict.action.node, verdict.rule
    ('n1', 'cordoned_share')
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
    """A new status of a command: issued, reported by an ack, or expired.

    ``incarnation`` is that of the worker, and set for standby tasks only.
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
    """The result of a granted action.

    ``result`` is ``done`` when every command was applied, ``undone`` when none was, and
    ``partial`` in between. ``verdict`` is the id of the proposal that was granted.

    Examples
    --------
    >>> from torchloom_core.plugin import CordonNode, Outcome
    >>> outcome = Outcome(
    ...     verdict="p1.1",
    ...     policy="lemon_nodes",
    ...     action=CordonNode(node="n1"),
    ...     result="done",
    ...     detail="",
    ...     took_s=0.0,
    ... )
    >>> outcome.action.node if outcome.result == "done" else None
    'n1'
    """

    verdict: str
    policy: str
    action: Action
    result: Literal["done", "partial", "undone"]
    detail: str
    took_s: float

    @classmethod
    def of(cls, plan: Plan, result: str, detail: str, now_ns: int) -> "Outcome":
        """Return the outcome of a plan."""
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
        """Return the outcome of an action that an earlier Weaver granted and never started."""
        return cls(
            verdict=verdict.proposal,
            policy=verdict.policy,
            action=verdict.action,
            result="undone",
            detail=why,
            took_s=0.0,
        )


class Judged(msgspec.Struct, frozen=True, kw_only=True, tag="judged"):
    """A guard's judgement of a change; if it ``hurt``, knobs are rolled back to ``before``.

    ``hurt`` is None if the guard could not judge, for the reason in ``text``.
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
    """An event that a person should see: a worker joined or left, a metric disappeared.

    Examples
    --------
    >>> from torchloom_core.plugin import Notice
    >>> Notice(kind="fault", text="g0-0 exited with status 1", worker="g0-0").worker
    'g0-0'
    """

    kind: str
    text: str
    worker: str = ""


class CordonOver(msgspec.Struct, frozen=True, kw_only=True, tag="cordon_over"):
    """The cordon of ``node`` has expired.

    Examples
    --------
    >>> from torchloom_core.plugin import CordonOver
    >>> CordonOver(node="n1").node
    'n1'
    """

    node: str


class KnobDesired(msgspec.Struct, frozen=True, kw_only=True, tag="knob_desired"):
    """The desired ``value`` of ``knob`` since ``since_ns``, on one worker or (None) on all.

    The value None removes the desired value; workers keep their present one. A value that
    ``waits`` is from an earlier job: it is not set until a person confirms it. ``role`` is that of
    the workers; absent: trainers.
    """

    knob: str
    value: KnobValue | None
    worker: str | None = None
    since_ns: int = 0
    waits: Literal[True] | msgspec.UnsetType = msgspec.UNSET
    role: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def whose(self) -> str:
        """The worker with `` of `` before it, or the role if it is no trainer's, or ""."""
        name = self.worker or self.role
        return f" of {name}" if name else ""


class Issue(msgspec.Struct, frozen=True, kw_only=True, tag="issue"):
    """Send ``command``; a restarted Weaver repeats it for each command in flight."""

    command: Command


class Withdrawal(msgspec.Struct, frozen=True, kw_only=True, tag="withdrawal"):
    """Withdraw a command that no worker has acknowledged."""

    command: str
    worker: str


class PauseChanged(msgspec.Struct, frozen=True, kw_only=True, tag="pause_held"):
    """The pause of ``verdict`` is in force from now on.

    Empty: no pause is in force; the one of ``over`` has ended or was never complete. ``role`` is
    the role that it concerns; absent: all.
    """

    verdict: str
    over: str = ""
    role: str | msgspec.UnsetType = msgspec.UNSET


class ForecastWanted(msgspec.Struct, frozen=True, kw_only=True, tag="forecast_wanted"):
    """Run a predictor, in another thread, on the view of this tick."""

    id: str
    predictor: str


class InputFailed(msgspec.Struct, frozen=True, kw_only=True, tag="input_failed"):
    """The Weaver's own code failed at this input and the Weaver ended; ``trace`` is a traceback."""

    error: str
    trace: str


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag="reply"):
    """The answer to a person's request."""

    request: str
    ok: bool
    text: str
    ids: tuple[str, ...] = ()


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
    | SuspensionChanged
    | ChangeWanted
    | Steer
    | ForecastWanted
    | InputFailed
    | Reply
)
"""All outputs of the kernel."""
