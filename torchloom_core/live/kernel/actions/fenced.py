"""Changes that all ranks apply at the same step, or none does; docs/fence.md has the protocol.

The Weaver offers a change to every rank that takes part in the agreement ahead of each step; the
acks report at which step it was applied. If a rank rejects it, it is withdrawn from all. A rank
that joins meanwhile takes over the pending change of the peer that it heals from.
"""

from collections.abc import Iterable, Set

from torchloom_core.floor.suggest import listed
from torchloom_core.live.kernel.actions.kind import Stages
from torchloom_core.live.kernel.actions.run import NAMED, Run
from torchloom_core.wire.operations import FencedChange, Operation, SetKnobs
from torchloom_core.wire.placement import NODE_AGENT


def fenced_stages(do: Operation, run: Run, groups: Iterable[str] = (), role: str = "") -> Stages:
    """Return the one stage that offers the operation to all ranks that it concerns."""
    number = run.commands.next_change()
    change = FencedChange(number=number, do=do, groups=tuple(groups), role=role)
    return Stages((run.stage(ranks_for(change, run), change),))


def ranks_for(change: FencedChange, run: Run) -> list[int]:
    """Return the rows that vote on a change: the ranks of the roles that it concerns."""
    if change.role:
        return run.voters({change.role})
    if isinstance(change.do, SetKnobs):  # of a record or a plan from before changes had a role
        return run.voters({run.role_of_knobs(change.do.values)})
    return run.voters(run.roles_of(change.groups))


def cannot_agree(what: str, run: Run, roles: Set[str] = frozenset()) -> str:
    """Return why the ranks of these roles, or of all, cannot apply ``what`` at one step; or "".

    A silent worker that cannot agree counts only if no other can: one that lives on behind a
    partition and is in a quorum has no ballot there, so that nothing is agreed on.
    """
    rule = f"{what} needs all ranks to agree on a step"
    hello = run.fleet.hello
    rows = [row for row in run.in_training(roles) if hello[row].role != NODE_AGENT]
    if not rows:
        return f"{rule}: no worker is training"
    if paused := run.pauses.paused(roles):
        what = f"role {paused.role}" if paused.role else "the run"
        return f"{rule}: {what} is paused, resume it first"
    if suspended := run.suspensions.refusal(roles):
        return f"{rule}: {suspended}"
    voters = run.voters(roles)
    alone = set(rows).difference(voters)
    if voters:
        alone.intersection_update(run.reachable(alone))
    if not alone:
        return ""
    names = listed(sorted(hello[row].worker for row in alone), NAMED)
    return f"{rule}: {names} cannot, attach with torchloom_threadlet.torchft or .torchrun"
