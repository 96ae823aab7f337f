"""A run as the safety limits see it, set by hand, and proposals."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from torchloom_core.config.loading import parse
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.dispatch.candidate import Candidate, Mode
from torchloom_core.live.kernel.actions.kinds import kind_of, target_of
from torchloom_core.live.kernel.arbiter.arbiter import Arbiter
from torchloom_core.wire.actions import Action, name_of
from torchloom_core.wire.decisions import Proposal, Proposed, Verdict
from torchloom_core.wire.plans import Granted

NOW_NS = 1_700_000_000 * SECOND_NS


@dataclass
class Standing:
    """Groups ``g0``, ``g1``, ... that train; a granted action is in motion until it is over."""

    groups: int = 4
    stopped: bool = False
    obstacles: dict[str, str] = field(default_factory=dict)
    under_way: dict[str, Verdict] = field(default_factory=dict)
    marked: frozenset[str] = frozenset()
    roles: dict[str, str] = field(default_factory=dict)

    def obstacle(self, action: Action) -> str:
        return self.obstacles.get(target_of(action), "")

    def in_progress(self, target: str) -> str:
        verdict = self.under_way.get(target)
        return verdict.proposal if verdict else ""

    def training_groups(self) -> set[str]:
        return {f"g{n}" for n in range(self.groups)}

    def role_of(self, group: str) -> str:
        return self.roles.get(group, "trainer")

    def is_only_role(self, role: str) -> bool:
        return all(self.role_of(group) == role for group in self.training_groups())

    def groups_in_motion(self) -> set[str]:
        actions = [verdict.action for verdict in self.under_way.values()]
        return {group for action in actions for group in kind_of(action).moves(action)}

    def nodes(self) -> set[str]:
        return {f"n{n}" for n in range(20)}

    def cordoned(self) -> set[str]:
        return set(self.marked)

    def start(self, verdict: Verdict) -> None:
        self.under_way[target_of(verdict.action)] = verdict


def arbiter(text: str = "") -> Arbiter:
    """Return an arbiter with these lines under ``[arbiter]``."""
    return Arbiter(parse(f"[arbiter]\n{text}").arbiter)


def candidate(
    action: Action,
    number: int = 1,
    *,
    policy: str = "p",
    mode: Mode = "act",
    ts_ns: int = NOW_NS,
    gain_gpu_s: float = 100.0,
    **price: Any,
) -> Candidate:
    proposal = Proposal(action=action, reason="r", gain_gpu_s=gain_gpu_s, **price)
    return Candidate(Proposed(id=f"p1.{number}", policy=policy, proposal=proposal), mode, ts_ns)


def decide(
    judge: Arbiter,
    candidates: Iterable[Candidate],
    standing: Standing | None = None,
    now_ns: int = NOW_NS,
) -> list[Verdict]:
    """Return the verdicts; each granted action starts before the next verdict."""
    where = standing or Standing()
    verdicts = []
    for verdict in judge.decide(candidates, where, now_ns):
        if verdict.granted:
            where.start(verdict)
        verdicts.append(verdict)
    return verdicts


_numbers = count(1)


def granted(
    action: Action, ago_s: float = 1.0, *, cost_gpu_s: float = 0.0, failed: bool = False
) -> Granted:
    return Granted(
        verdict=f"p0.{next(_numbers)}",
        target=target_of(action),
        action=name_of(action),
        ts_ns=NOW_NS - round(ago_s * SECOND_NS),
        cost_gpu_s=cost_gpu_s,
        failed=failed,
    )
