"""The active plugins; a policy that fails is quarantined and does not affect the others."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

from msgspec.structs import replace

from torchloom_core.interface.api import Policy, Predictor, WithdrawingPolicy
from torchloom_core.interface.contract import GarbageError, checked_proposal
from torchloom_core.interface.effector import ActiveEffector
from torchloom_core.interface.foreign import home_of, raised_in, shown
from torchloom_core.interface.needs import PolicyNeed
from torchloom_core.interface.view import FleetView
from torchloom_core.live.dispatch.policy_guard import OVERRAN, Guard, PolicyOverran
from torchloom_core.wire.decisions import Notice, Output, PolicyFailed, Proposal, Proposed
from torchloom_core.wire.events import PredictorFailed
from torchloom_core.wire.limits import MAX_TEXT
from torchloom_core.wire.messages import Hello
from torchloom_core.wire.placement import NODE_AGENT

MAX_PROPOSALS = 10_000

_T = TypeVar("_T")


@dataclass(frozen=True)
class ActivePolicy:
    """An active policy; ``dry_run_reason`` is why it is in dry run against the config.

    It sees the workers of ``roles``; empty: of all.
    """

    name: str
    policy: Policy
    mode: Literal["act", "dry_run", "shadow"] = "act"
    dry_run_reason: str = ""
    roles: tuple[str, ...] = ()


@dataclass(frozen=True)
class ActivePlugins:
    """The plugins that the config activates, those that failed to start, and warnings."""

    policies: tuple[ActivePolicy, ...] = ()
    predictors: Mapping[str, Predictor] = field(default_factory=dict)
    failed: tuple[PolicyFailed | PredictorFailed, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    effectors: tuple[ActiveEffector, ...] = ()

    @property
    def needs(self) -> list[PolicyNeed]:
        """The needs that the active plugins declared."""
        policies = [need for active in self.policies for need in active.policy.needs]
        return [*policies, *(need for one in self.predictors.values() for need in one.needs)]


class PolicyHost:
    """The active policies, and which of them are quarantined."""

    def __init__(self, policies: Sequence[ActivePolicy], guard: Guard) -> None:
        self._policies = list(policies)
        self._guard = guard
        self.quarantined: dict[str, PolicyFailed] = {}
        self._unseen: set[str] = set()

    def propose(
        self, view: FleetView, seq: int
    ) -> tuple[list[tuple[ActivePolicy, Proposal]], list[PolicyFailed]]:
        """Call every policy that is not quarantined; return proposals and new failures.

        One whose roles have no worker yet is not called.
        """
        proposals: list[tuple[ActivePolicy, Proposal]] = []
        failures: list[PolicyFailed] = []
        for active in self._policies:
            if active.name in self.quarantined:
                continue
            seen = view.of_roles(active.roles)
            if len(view) and not len(seen):
                continue
            on_tick = partial(active.policy.on_tick, seen.twin())
            result = self._call(active, "on_tick", seq, partial(_collect_from, on_tick))
            if isinstance(result, PolicyFailed):
                failures.append(result)
            else:
                role = active.roles[0] if seen is not view and len(active.roles) == 1 else ""
                proposals += [(active, _within(role, proposal)) for proposal in result]
        return proposals, failures

    def notice_role(self, hello: Hello) -> list[Output]:
        """Report once that there are policies, but none that sees the workers of a role."""
        role = hello.role
        seen = [not one.roles or role in one.roles for one in self._policies]
        if any(seen) or not seen or role in self._unseen | {NODE_AGENT}:
            return []
        self._unseen.add(role)
        text = f"no policy sees role {role}, the role of {hello.worker}: [roles.{role}.policies]"
        return [Notice(kind="role", text=text, worker=hello.worker)]

    def lapsed(self, proposed: Proposed, view: FleetView, seq: int) -> str | PolicyFailed:
        """Return why its policy gives a proposal up, or an empty string."""
        active = next((one for one in self._policies if one.name == proposed.policy), None)
        if active is None or active.name in self.quarantined:
            return ""
        if not isinstance(active.policy, WithdrawingPolicy):
            return ""
        seen = view.of_roles(active.roles).twin()
        lapsed = partial(active.policy.lapsed, seen, proposed.proposal)
        return self._call(active, "lapsed", seq, partial(_reason_from, lapsed))

    def _call(
        self, active: ActivePolicy, method: str, seq: int, call: Callable[[], _T]
    ) -> _T | PolicyFailed:
        """Return the policy's answer, or its failure, which quarantines it."""
        try:
            with self._guard.limit(active.name, seq):
                return call()
        except KeyboardInterrupt:
            raise  # Ctrl-C may arrive while a policy runs
        except PolicyOverran as error:
            failure = PolicyFailed(policy=active.name, rule=OVERRAN, detail=str(error))
        except GarbageError as error:
            detail = f"{error} ({home_of(active.policy, method)})"
            failure = PolicyFailed(policy=active.name, rule="garbage", detail=detail)
        except BaseException as error:  # noqa: BLE001 - foreign code, which may call sys.exit
            detail = raised_in(error, active.policy, method)
            failure = PolicyFailed(policy=active.name, rule="raised", detail=detail)
        self.quarantined[active.name] = failure
        return failure


def _within(role: str, proposal: Proposal) -> Proposal:
    """Return the proposal of a policy that sees one role: its action is on that role alone."""
    action: Any = proposal.action
    is_of_one = getattr(action, "group", None) or getattr(action, "worker", None)
    if not role or is_of_one or getattr(action, "role", role):
        return proposal
    return replace(proposal, action=replace(action, role=role))


def _reason_from(lapsed: Callable[[], Any]) -> str:
    text = lapsed()
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise GarbageError(f"need a reason of at most {MAX_TEXT} characters, was {shown(text)}")
    return text


def _collect_from(on_tick: Callable[[], Any]) -> list[Proposal]:
    result = on_tick()
    if result is None:
        return []
    if not isinstance(result, Iterable):
        raise GarbageError(f"need proposals, was {type(result).__name__} {shown(result)}")
    proposals: list[Proposal] = []
    for proposal in result:
        if len(proposals) == MAX_PROPOSALS:
            raise GarbageError(f"need at most {MAX_PROPOSALS} proposals a tick, were more")
        proposals.append(checked_proposal(proposal))
    return proposals
