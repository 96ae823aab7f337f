"""What all ranks of the run do at one step, or none does: docs/fence.md says how they agree.

The Weaver offers it to every rank that agrees with the others ahead of each step, and is told
whether it was done, and at which step. A rank that cannot do it says so, and then it is withdrawn.
Whoever joins meanwhile holds what the peer holds whose state it takes.
"""

from collections.abc import Iterable

from torchloom_core.kernel.actions.kind import Stages
from torchloom_core.kernel.actions.run import NAMED, Run
from torchloom_core.suggest import listed
from torchloom_core.wire.messages import Drain, FencedChange, Pause, Rewind, SetKnobs


def fenced_stages(
    do: SetKnobs | Pause | Drain | Rewind, run: Run, groups: Iterable[str] = ()
) -> Stages:
    """Return the one stage in which all that agree are offered the operation."""
    operation = FencedChange(number=run.commands.next_change(), do=do, groups=tuple(groups))
    return Stages((run.stage(run.voters(), operation),))


def cannot_agree(what: str, run: Run) -> str:
    """Return why the ranks of the run cannot do something at one step, or nothing."""
    rows, lands = run.rows_in("training", "paused"), f"{what} lands on all ranks at one step, and"
    if not rows:
        return f"{lands} no worker is training"
    if run.pauses.verdict:
        return f"{lands} the run is paused: resume it first"
    alone = set(rows).difference(run.voters())
    if not alone:
        return ""
    names = listed(sorted(run.fleet.hello[row].worker for row in alone), NAMED)
    attach = "attach by torchloom_threadlet.torchft or .torchrun"
    return f"{lands} {names} {'has' if len(alone) == 1 else 'have'} nothing to agree by: {attach}"
