"""The safety limits: each returns why a proposal is denied, or an empty string.

:mod:`torchloom_core.live.kernel.arbiter.arbiter` applies them in order; the first denial names the
verdict's rule.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchloom_core.config import schema
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.kernel.actions.kind import GROUP, ActionKind
from torchloom_core.live.kernel.actions.kinds import find_kind, kind_of
from torchloom_core.live.kernel.situation import Situation
from torchloom_core.wire.actions import Action, name_of
from torchloom_core.wire.decisions import Proposal
from torchloom_core.wire.placement import TRAINER
from torchloom_core.wire.plans import Granted

_DEFAULT = schema.Role()
_HOUR_NS = 3600 * SECOND_NS

_ROUNDING = 1e-9
"""0.29 of 100 groups is 29, although the product of the floats is slightly less."""


class Refusal(NamedTuple):
    """A person's denial of a proposal: when, and the confidence that the proposal had."""

    ts_ns: int
    confidence: float


class _OfRole(NamedTuple):
    """A role of the run; as a text a clause, empty for the trainers'."""

    role: str
    situation: Situation

    def among(self, groups: Set[str]) -> set[str]:
        """Return those of the groups that have the role."""
        return {group for group in groups if self.situation.role_of(group) == self.role}

    def __str__(self) -> str:
        return f" of role {self.role}" if self.role not in ("", TRAINER) else ""


@dataclass(frozen=True)
class Case:
    """One proposal before the limits."""

    proposal: Proposal
    policy: str
    proposed_ns: int
    now_ns: int
    limits: schema.Arbiter
    roles: Mapping[str, schema.Role]
    past: Collection[Granted]
    refusal: Refusal | None
    situation: Situation

    @property
    def action(self) -> Action:
        """The proposed action."""
        return self.proposal.action

    @property
    def kind(self) -> ActionKind[Any]:
        """The kind of action."""
        return kind_of(self.action)

    @property
    def name(self) -> str:
        """The name of the kind."""
        return name_of(self.action)

    @property
    def target(self) -> str:
        """The target of the action."""
        return self.kind.target(self.action)

    @property
    def rule(self) -> schema.ActionRule:
        """The config of this kind of action."""
        return self.limits.actions.get(self.name, schema.ActionRule())

    def min_groups(self, role: str) -> int:
        """Return the least number of groups of a role that go on training."""
        own = self.roles.get(role, _DEFAULT).min_groups
        return self.limits.min_groups if own is None else own

    def max_in_motion_share(self, role: str) -> float:
        """Return the largest share of a role's groups in motion."""
        own = self.roles.get(role, _DEFAULT).max_in_motion_share
        return self.limits.max_in_motion_share if own is None else own

    def by_role(self, groups: Set[str]) -> Iterator[tuple["_OfRole", Set[str]]]:
        """Yield each role of the groups, with its training groups."""
        situation, training = self.situation, self.situation.training_groups()
        for role in sorted(set(map(situation.role_of, groups))):
            of_role = _OfRole(role, situation)
            # Of 10,000 groups, to look at each would take milliseconds a proposal.
            own = training if situation.is_only_role(role) else of_role.among(training)
            yield of_role, own

    def ago_s(self, ts_ns: int) -> float:
        """Return how long ago this was; rounded down, so that it never shows as a needed time."""
        return (self.now_ns - ts_ns) // (SECOND_NS // 10) / 10

    def within(self, window_ns: int) -> list[Granted]:
        """Return the grants of the last ``window_ns``."""
        return [grant for grant in self.past if grant.ts_ns > self.now_ns - window_ns]


def kill_switch(case: Case) -> str:
    """Deny everything while actions are stopped."""
    return "actions are stopped: resume them first" if case.situation.stopped else ""


def expiry(case: Case) -> str:
    """Deny a proposal that is too old."""
    age_s = (case.now_ns - case.proposed_ns) / SECOND_NS
    if age_s <= case.proposal.expires_s:
        return ""
    return f"need an age of at most {case.proposal.expires_s:g} s, was {age_s:.1f} s"


def impossible(case: Case) -> str:
    """Deny an action that cannot be carried out."""
    return case.situation.obstacle(case.action)


def forbidden_pair(case: Case) -> str:
    """Deny a pair of policy and action that the config forbids."""
    for pair in case.limits.forbidden:
        names = (case.policy, case.policy.rpartition(".")[2])  # that of a role has its name before
        if pair.policy in names and pair.action == case.name:
            return f"the config forbids {case.policy} to propose {case.name}"
    return ""


def low_confidence(case: Case) -> str:
    """Deny an action that needs more confidence."""
    need = case.rule.min_confidence
    if case.proposal.confidence >= need:
        return ""
    return f"{case.name} needs confidence >= {need:g}, was {case.proposal.confidence:.3g}"


def in_progress(case: Case) -> str:
    """Deny a second action on a target while one is under way, unless it supersedes the first."""
    if case.kind.replaces:
        return ""
    verdict = case.situation.in_progress(case.target)
    return f"{verdict} is under way on {case.target}" if verdict else ""


def cooldown(case: Case) -> str:
    """Deny the same action on the same target within the cooldown.

    Within that time after a person's denial, also deny repeats with no more confidence.
    """
    rest_s = case.limits.cooldown_s if case.rule.cooldown_s is None else case.rule.cooldown_s
    target, name = case.target, case.name
    for grant in case.within(round(rest_s * SECOND_NS)):
        if grant.target == target and grant.action == name:
            ago_s = case.ago_s(grant.ts_ns)
            return f"need {rest_s:g} s after the last {name} of {target}, was {ago_s:.1f} s"
    refusal = case.refusal
    if refusal and case.proposal.confidence <= refusal.confidence:
        ago_s = case.ago_s(refusal.ts_ns)
        if ago_s < rest_s:
            return f"need {rest_s:g} s after a person denied it, was {ago_s:.1f} s"
    return ""


def rate_limit(case: Case) -> str:
    """Deny more actions of a kind in an hour than its limit."""
    limit = case.rule.limit_per_hour
    if limit is None:
        return ""
    name = case.name
    count = sum(grant.action == name for grant in case.within(_HOUR_NS))
    return f"need fewer than {limit} {name} an hour, was {count}" if count >= limit else ""


def budget(case: Case) -> str:
    """Deny more GPU-seconds for a kind in an hour than its budget."""
    limit = case.rule.budget_gpu_s_per_hour
    if limit is None:
        return ""
    name = case.name
    used_gpu_s = sum(g.cost_gpu_s for g in case.within(_HOUR_NS) if g.action == name)
    if used_gpu_s + case.proposal.cost_gpu_s <= limit:
        return ""
    return (
        f"need at most {limit:g} GPU-s of {name} an hour, would be "
        f"{used_gpu_s + case.proposal.cost_gpu_s:.0f}"
    )


def breaker(case: Case) -> str:
    """Deny high-impact actions when too many failed or too much of the run moved."""
    if not case.kind.high_impact:
        return ""
    rule = case.limits.breaker
    within = case.within(round(rule.window_s * SECOND_NS))
    kinds = [(grant, find_kind(grant.action)) for grant in within]
    recent = [grant for grant, kind in kinds if kind and kind.high_impact]
    failures = sum(grant.failed for grant in recent)
    if failures >= rule.failures:
        return (
            f"need fewer than {rule.failures} failed actions in {rule.window_s:g} s, was {failures}"
        )
    if not case.kind.moves(case.action):
        return ""
    moved = {grant.target for grant in recent if grant.target.startswith(GROUP)} | {case.target}
    moved = {target.removeprefix(GROUP) for target in moved}
    for of_role, training in case.by_role(case.kind.moves(case.action)):
        own = of_role.among(moved)
        groups = len(training)
        if len(own) > 1 and groups and len(own) / groups > rule.max_moved_share:
            return (
                f"need at most {rule.max_moved_share:.0%} of {groups} groups moved in "
                f"{rule.window_s:g} s, would be {len(own)}"
            )
    return ""


def quorum_minimum(case: Case) -> str:
    """Deny an action that leaves too few training groups of a role; standbys do not count."""
    taken = case.kind.takes(case.action)
    for of_role, training in case.by_role(taken):
        if taken.isdisjoint(training):
            continue
        left = len(training - case.situation.groups_in_motion() - taken)
        need = case.min_groups(of_role.role)
        if left < need:
            groups = "1 group" if need == 1 else f"{need} groups"
            return f"need at least {groups}{of_role} left training, would be {left}"
    return ""


def in_motion_share(case: Case) -> str:
    """Deny moving more than a share of a role's training groups at once.

    Standbys do not count.
    """
    moved = case.kind.moves(case.action)
    for of_role, training in case.by_role(moved):
        if moved.isdisjoint(training):
            continue
        moving = of_role.among(case.situation.groups_in_motion() | moved)
        groups, limit = len(training), case.max_in_motion_share(of_role.role)
        if len(moving) > max(1, int(limit * groups + _ROUNDING)):
            return (
                f"need at most {limit:.0%} of {groups} groups{of_role} in motion, "
                f"would be {len(moving)}"
            )
    return ""


def cordoned_share(case: Case) -> str:
    """Deny cordoning more than a share of the nodes; one is always allowed."""
    nodes_cordoned = case.kind.cordons(case.action)
    if not nodes_cordoned:
        return ""
    cordoned = len(case.situation.cordoned() | nodes_cordoned)
    nodes = len(case.situation.nodes() | case.situation.cordoned())
    limit = case.limits.max_cordoned_share
    if cordoned <= max(1, int(limit * nodes + _ROUNDING)):
        return ""
    return f"need at most {limit:.0%} of {nodes} nodes cordoned, would be {cordoned}"


def no_gain(case: Case) -> str:
    """Deny an action whose net gain is not above 0, that of the no-op."""
    if case.kind.skips_price_check or case.proposal.net_gpu_s > 0:
        return ""
    return f"need a net gain > 0 GPU-s, was {case.proposal.net_gpu_s:.1f}"


SafetyLimit = Callable[[Case], str]

PERSON_LIMITS: tuple[SafetyLimit, ...] = (
    kill_switch,
    expiry,
    impossible,
    in_progress,
    quorum_minimum,
    in_motion_share,
)
"""The limits that a person cannot override either."""

POLICY_LIMITS: tuple[SafetyLimit, ...] = (
    kill_switch,
    expiry,
    impossible,
    forbidden_pair,
    low_confidence,
    in_progress,
    cooldown,
    rate_limit,
    budget,
    breaker,
    quorum_minimum,
    in_motion_share,
    cordoned_share,
    no_gain,
)
"""The limits for a policy's proposal, in the order in which they are applied."""
