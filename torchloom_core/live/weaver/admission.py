"""Admit workers to a run: the checks before a worker gets credentials."""

from collections.abc import Callable, Set

from torchloom_core.live.fleet.state import FleetState
from torchloom_core.live.transport.security.enrolment import Enrolment
from torchloom_core.wire.messages import JoinReply, JoinRequest, version_fault


def admitted(
    request: JoinRequest,
    enrolment: Enrolment | None,
    fleet: FleetState,
    now_ns: int,
    training: Set[str],
    min_groups: int,
    warn: Callable[[str, str], None],
) -> JoinReply:
    """Return the answer to a join request; without ``enrolment`` a worker needs no credentials."""
    if fault := version_fault(request.v):
        warn(request.worker, f"may not join: {fault}")
        return JoinReply(error=fault)
    alive = fleet.alive(request.worker, now_ns)
    in_use = name_in_use(request, alive, fleet)
    if enrolment is not None:
        error = unwanted(request, alive, fleet, training, min_groups)
        return enrolment.admit(request, alive, error, in_use)
    if in_use:
        warn(request.worker, f"may not join: {in_use}")
    return JoinReply(error=in_use, taken=bool(in_use))


def name_in_use(request: JoinRequest, alive: int | None, fleet: FleetState) -> str:
    """Return why the name is in use, by another process that reports under it; or nothing."""
    if alive is None or alive == request.incarnation:
        return ""
    holder = fleet.hello[fleet.row_of[request.worker]]
    return (
        f"{request.worker} is already enrolled by another running process (node {holder.node}, "
        f"pid {holder.pid}): give each process its own group and rank"
    )


def unwanted(
    request: JoinRequest, alive: int | None, fleet: FleetState, training: Set[str], min_groups: int
) -> str:
    """Return why the worker is not wanted on its node, or nothing.

    torchrun restarts a process on the node that its group was moved off, or failed on. It may
    train on a cordoned node only if too few groups train without it.
    """
    if request.node not in fleet.cordons.nodes or alive == request.incarnation:
        return ""
    group = request.group or fleet.group_of(request.worker)  # an older Threadlet names none
    role = fleet.role_of(group)
    alike = {one for one in training if not role or fleet.role_of(one) == role}
    others = len(alike - {group})
    if others < max(1, min_groups):
        return ""
    groups = "1 other group trains" if others == 1 else f"{others} other groups train"
    return f"node {request.node} is cordoned and {groups}"
