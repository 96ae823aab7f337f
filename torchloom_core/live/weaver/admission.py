"""Admit workers to a run: the checks before a worker gets credentials."""

from collections.abc import Callable, Set

from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import Clock
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.transport.security.enrolment import Enrolment
from torchloom_core.wire.messages import Hello, JoinReply, JoinRequest, version_fault


class Admission:
    """Which workers may join, and whose hellos count; ``warn`` logs a refusal, limited by worker.

    ``enrolment`` is None where workers need no credentials of their own.
    """

    def __init__(
        self, kernel: Kernel, config: Config, clock: Clock, warn: Callable[[str, str], None]
    ) -> None:
        self._kernel = kernel
        self._config = config
        self._clock = clock
        self._warn = warn
        self.enrolment: Enrolment | None = None

    async def answer(self, request: JoinRequest) -> JoinReply:
        """Return the answer to a join request."""
        kernel = self._kernel
        training = kernel.run.training_groups()
        need = self._config.min_groups(kernel.fleet.role_of(request.group))
        now_ns = self._clock.now_ns()
        return admitted(request, self.enrolment, kernel.fleet, now_ns, training, need, self._warn)

    def expects(self, hello: Hello) -> bool:
        """Return whether a hello counts."""
        if fault := version_fault(hello.v):  # it was admitted by an earlier Weaver
            text = "%s is not registered, restart its trainer: %s"
            self._warn(hello.worker, text % (hello.worker, fault))
            return False
        # Credentials of an incarnation that never started stay valid after its name was reused.
        if self.enrolment is None or self.enrolment.may_begin(hello.worker, hello.incarnation):
            return True
        text = "hello of %s dropped: a newer incarnation than %d was given its name"
        self._warn(hello.worker, text % (hello.worker, hello.incarnation))
        return False


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
