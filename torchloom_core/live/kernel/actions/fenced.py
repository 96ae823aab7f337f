"""Changes that all ranks apply at the same step, or none does; docs/fence.md has the protocol.

The Weaver offers a change to every rank that takes part in the agreement ahead of each step; the
acks report at which step it was applied. If a rank rejects it, it is withdrawn from all. A rank
that joins meanwhile takes over the pending change of the peer that it heals from.
"""

from collections.abc import Iterable

from torchloom_core.floor.suggest import listed
from torchloom_core.live.kernel.actions.kind import Stages
from torchloom_core.live.kernel.actions.run import NAMED, Run
from torchloom_core.wire.operations import FencedChange, Operation


def fenced_stages(do: Operation, run: Run, groups: Iterable[str] = ()) -> Stages:
    """Return the one stage that offers the operation to all ranks that can agree."""
    operation = FencedChange(number=run.commands.next_change(), do=do, groups=tuple(groups))
    return Stages((run.stage(run.voters(), operation),))


def cannot_agree(what: str, run: Run) -> str:
    """Return why the ranks cannot apply ``what`` at one step, or an empty string."""
    rows, rule = run.rows_in("training", "paused"), f"{what} needs all ranks to agree on a step"
    if not rows:
        return f"{rule}: no worker is training"
    if run.pauses.verdict:
        return f"{rule}: the run is paused, resume it first"
    alone = set(rows).difference(run.voters())
    if not alone:
        return ""
    names = listed(sorted(run.fleet.hello[row].worker for row in alone), NAMED)
    return f"{rule}: {names} cannot, attach with torchloom_threadlet.torchft or .torchrun"
