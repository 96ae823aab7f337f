"""Grant proposals by net gain, subject to the safety limits; the kernel calls it at every tick."""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import msgspec

from torchloom_core.config import schema
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.persistent_table import PersistentTable
from torchloom_core.live.dispatch.candidate import Candidate
from torchloom_core.live.kernel.actions.kinds import target_of
from torchloom_core.live.kernel.arbiter.limits import (
    PERSON_LIMITS,
    POLICY_LIMITS,
    Case,
    Refusal,
)
from torchloom_core.live.kernel.situation import Situation
from torchloom_core.wire.actions import name_of
from torchloom_core.wire.decisions import Proposed, Verdict
from torchloom_core.wire.plans import Granted
from torchloom_core.wire.requests import PERSON, UNWEIGHED

_HOUR_S = 3600.0


class Arbiter:
    """Decides proposals; stores past grants and the proposals that wait for approval."""

    def __init__(
        self, limits: schema.Arbiter, roles: Mapping[str, schema.Role] | None = None
    ) -> None:
        self._limits = limits
        self._roles = roles or {}
        self._memory_ns = round(_memory_s(limits) * SECOND_NS)
        self.grants: PersistentTable[Granted] = PersistentTable("grant")
        self.waiting: dict[str, Candidate] = {}
        self._refusals: dict[tuple[str, str, str], Refusal] = {}

    def decide(
        self, candidates: Iterable[Candidate], situation: Situation, now_ns: int
    ) -> Iterator[Verdict]:
        """Yield one verdict a proposal, the highest net gain first.

        The caller starts each granted action before it takes the next verdict, so that each
        proposal is judged in the situation that the earlier ones have made.
        """
        for grant in list(self.grants.values()):
            if grant.ts_ns <= now_ns - self._memory_ns:
                del self.grants[grant.verdict]
        winners: dict[str, str] = {}
        priced = [self._priced(candidate, situation) for candidate in candidates]
        for candidate in sorted(priced, key=_rank):
            proposal = candidate.proposed
            target = target_of(proposal.proposal.action)
            if target in winners and candidate.mode != "shadow":
                yield candidate.denied("outbid", f"{winners[target]} has a higher net gain")
                continue
            verdict = self._judge(candidate, situation, now_ns)
            if verdict.granted or verdict.rule in {"dry_run", "approval", "holdout"}:
                winners[target] = proposal.id
            yield verdict

    def _priced(self, candidate: Candidate, situation: Situation) -> Candidate:
        """Return the candidate at the price of the role that its action concerns."""
        if not self._roles:
            return candidate
        role = self._roles.get(situation.role_of_action(candidate.proposed.proposal.action))
        return replace(candidate, price=role.price) if role else candidate

    def expired(self, now_ns: int) -> list[Verdict]:
        """Return a denial of every proposal that was not approved in time."""
        late = [
            waiting
            for waiting in self.waiting.values()
            if now_ns - waiting.ts_ns > waiting.proposed.proposal.expires_s * SECOND_NS
        ]
        for waiting in late:
            del self.waiting[waiting.proposed.id]
        return [waiting.denied("expiry", "not approved in time") for waiting in late]

    def withdraw(self, proposal_id: str, rule: str, reason: str) -> Verdict:
        """Deny a waiting proposal.

        Raises
        ------
        KeyError
            If no such proposal waits.
        """
        return self.waiting.pop(proposal_id).denied(rule, reason)

    def refuse(self, proposal_id: str, reason: str, now_ns: int) -> Verdict:
        """Deny a waiting proposal for a person; a repeat is subject to the cooldown.

        Raises
        ------
        KeyError
            If no such proposal waits.
        """
        proposed = self.waiting[proposal_id].proposed
        self._refusals[_kind(proposed)] = Refusal(now_ns, proposed.proposal.confidence)
        return self.withdraw(proposal_id, PERSON, reason)

    def approve(self, proposal_id: str, by: str, situation: Situation, now_ns: int) -> Verdict:
        """Decide a waiting proposal that the person ``by`` has approved.

        Raises
        ------
        KeyError
            If no such proposal waits.
        """
        candidate = self.waiting.pop(proposal_id)
        return self._judge(candidate, situation, now_ns, approved_by=by)

    def failed(self, verdict_id: str) -> None:
        """Count a granted action as failed, for the circuit breaker."""
        grant = self.grants.get(verdict_id)
        if grant is not None:
            self.grants[verdict_id] = msgspec.structs.replace(grant, failed=True)

    def _judge(
        self, candidate: Candidate, situation: Situation, now_ns: int, *, approved_by: str = ""
    ) -> Verdict:
        proposed, proposal = candidate.proposed, candidate.proposed.proposal
        case = Case(
            proposal=proposal,
            policy=proposed.policy,
            proposed_ns=candidate.ts_ns,
            now_ns=now_ns,
            limits=self._limits,
            roles=self._roles,
            past=self.grants.values(),
            refusal=self._refusals.get(_kind(proposed)),
            situation=situation,
        )
        unweighed = proposed.policy in UNWEIGHED
        for limit in PERSON_LIMITS if unweighed else POLICY_LIMITS:
            objection = limit(case)
            if objection:
                if candidate.mode == "shadow":
                    would = f"would be denied by {limit.__name__}: {objection}"
                    return candidate.denied("shadow", would)
                return candidate.denied(limit.__name__, objection)
        if candidate.mode == "shadow":
            return candidate.denied("shadow", f"would be granted: {proposal.reason}")
        if case.rule.approval and not (unweighed or approved_by):
            return self._await_approval(candidate)
        rule = PERSON if approved_by else proposed.policy if unweighed else "net_gain"
        return self._draw(candidate, now_ns, rule=rule, approved_by=approved_by)

    def _await_approval(self, candidate: Candidate) -> Verdict:
        """Store the proposal until a person approves it, unless one on its target waits."""
        target = target_of(candidate.proposed.proposal.action)
        for waiting in self.waiting.values():
            if target_of(waiting.proposed.proposal.action) == target:
                text = f"{waiting.proposed.id} already waits for approval"
                return candidate.denied("approval", text)
        self.waiting[candidate.proposed.id] = candidate
        proposal = candidate.proposed.proposal
        text = f"waits {proposal.expires_s:g} s for approval: {proposal.reason}"
        return candidate.denied("approval", text)

    def _draw(self, candidate: Candidate, now_ns: int, *, rule: str, approved_by: str) -> Verdict:
        """Take the action or, with the holdout's probability, the no-op."""
        proposed, proposal = candidate.proposed, candidate.proposed.proposal
        holdout = 0.0 if rule in UNWEIGHED else self._limits.holdout
        if random.Random(f"{self._limits.seed}/{proposed.id}").random() < holdout:
            return candidate.denied("holdout", "the no-op was drawn", propensity=holdout)
        self.grants[proposed.id] = Granted(
            verdict=proposed.id,
            target=target_of(proposal.action),
            action=name_of(proposal.action),
            ts_ns=now_ns,
            cost_gpu_s=proposal.cost_gpu_s,
        )
        if self._limits.dry_run or candidate.mode == "dry_run":
            return candidate.denied("dry_run", f"would be granted: {proposal.reason}")
        reason = f"{proposal.reason}; approved by {approved_by}" if approved_by else proposal.reason
        return candidate.granted(rule, reason, 1.0 - holdout)

    def restore(self, grants: Iterable[Granted], now_ns: int) -> None:
        """Take over the grants of an earlier Weaver, whose clock may have been ahead."""
        for grant in grants:
            self.grants[grant.verdict] = msgspec.structs.replace(
                grant, ts_ns=min(grant.ts_ns, now_ns)
            )


def _kind(proposed: Proposed) -> tuple[str, str, str]:
    """Return what a repeat of the proposal has in common with it."""
    action = proposed.proposal.action
    return proposed.policy, target_of(action), name_of(action)


def _memory_s(limits: schema.Arbiter) -> float:
    """Return how long the safety limits need past grants, seconds."""
    cooldowns = (rule.cooldown_s or 0.0 for rule in limits.actions.values())
    return max(_HOUR_S, limits.cooldown_s, limits.breaker.window_s, *cooldowns)


def _rank(candidate: Candidate) -> tuple[bool, bool, float, str]:
    """Sort shadows last, people and the Weaver first, then by net gain, then by id."""
    proposed = candidate.proposed
    return (
        candidate.mode == "shadow",
        proposed.policy not in UNWEIGHED,
        -candidate.net_gpu_s,
        proposed.id,
    )
