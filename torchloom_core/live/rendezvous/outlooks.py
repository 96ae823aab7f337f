"""The state of a rendezvous, for a client that looks at it."""

from torchloom_core.assignments.price import Program
from torchloom_core.live.rendezvous.expert_parts import ExpertStates
from torchloom_core.live.rendezvous.planned import Planned
from torchloom_core.live.rendezvous.workers import Workers
from torchloom_core.wire.assignment import Assignment
from torchloom_core.wire.generations import Join, Outlook


def outlook_of(
    phase: str,
    waits_for: int,
    assignment: Assignment | None,
    join: Join | None,
    known: Program,
    workers: Workers,
    experts: ExpertStates,
    planned: Planned,
) -> Outlook:
    """Put together what is known; ``join`` describes the program."""
    return Outlook(
        phase=phase,
        waits_for=max(waits_for, 0),
        assignment=assignment,
        standbys=workers.standbys(assignment),
        program=join,
        layer_s=tuple(known.layer_s) if known.is_measured else (),
        slowness=dict(known.slowness),
        fixed_s=known.fixed_s,
        committed=workers.committed,
        nodes=workers.nodes,
        tokens=tuple(experts.loads(assignment).tokens),
        mirrors=experts.mirrors(assignment),
        offer=planned.offer,
        left_out=tuple(sorted(planned.left_out)),
        answered=planned.answered,
        cause=planned.cause,
    )
