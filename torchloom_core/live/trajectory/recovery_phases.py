"""One recovery: its phases from a fault to the first committed step, and what would shorten it.

The boundary between two phases is the moment at which the last of a group's ranks has passed it, so
the phases follow each other without a gap and add up to the whole. A rank's phases are put into the
order of ``PHASES`` first: a compilation within the first step counts before it.
"""

from collections.abc import Iterable, Sequence

import msgspec

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.wire import start_phases as start

DETECT, DECIDE, FAILED_STARTS, RELAUNCH = "detect", "decide", "failed_starts", "relaunch"

PHASES = (DETECT, DECIDE, FAILED_STARTS, RELAUNCH, *start.PHASES)
"""All phases of a recovery, in order."""

MEANINGS = {
    DETECT: "until the Weaver had the report of the fault",
    DECIDE: "until the Weaver sent the command",
    FAILED_STARTS: "starts that failed before their first committed step",
    RELAUNCH: "until the launcher had a node and had started the process",
    start.IMPORT: "from the start of the process to attach()",
    start.JOIN: "until the worker was admitted, or the standby had received its command",
    start.BUILD: "from attach() to loom.manage(): process group, model, optimizer",
    start.COMPILE: "torch.compile",
    start.RESTORE: "loom.checkpoints() loaded a checkpoint",
    start.DATA_LOADER: "the data loader's first batch",
    start.QUORUM: "waiting for the other ranks or groups",
    start.STATE_TRANSFER: "copying a peer's state",
    start.FIRST_STEP: "the rest, to the end of the first committed step",
}

ADVICE = {
    DETECT: "the report came late: check the broker's link, and weaver.stale_after_s for nodes "
    "that are lost as a whole",
    DECIDE: "the decision waited: for an approval, a cooldown or a rate limit; see torchloom "
    "trajectory show --kind verdict",
    FAILED_STARTS: "starts failed: read their errors with torchloom logs; a job that cannot start "
    "gains nothing from further tries",
    RELAUNCH: "keep a warm standby, or a spare node; shorten the launcher's own timeouts, such as "
    "torchrun's --monitor-interval and its rendezvous, or the lighthouse's",
    start.IMPORT: "import less before attach(), and from a local disk: python -X importtime shows "
    "what takes long; a standby has imported already",
    start.JOIN: "the Weaver's admission or the command took long: check the broker's link",
    start.BUILD: "create the model on the meta device, and attach only what trains; a standby that "
    "waits in attach(held=True) has built already",
    start.COMPILE: "keep the compiler's caches between starts: TORCHINDUCTOR_CACHE_DIR and "
    "TORCHINDUCTOR_FX_GRAPH_CACHE=1 on a disk that outlives the process",
    start.RESTORE: "restore from a nearer tier: loom.checkpoints(..., memory_every_s=...) keeps a "
    "copy in this node's memory and another node's",
    start.DATA_LOADER: "use a loader with a state, as StatefulDataLoader, which need not replay "
    "batches; fewer workers start sooner",
    start.QUORUM: "other ranks or groups came late: see their phases; lower min_replica_size, the "
    "lighthouse's join timeout, or the length of a step",
    start.STATE_TRANSFER: "send the state in several chunks (torchft: HTTPTransport(num_chunks=8) "
    "or PGTransport), over a faster link",
    start.FIRST_STEP: "the first step is far longer than others: warm up what it initializes, such "
    "as autotuning, allocations, a loader that is not passed to loom.checkpoints",
}
"""What would shorten a recovery whose longest phase this is."""


class RankStart(msgspec.Struct, frozen=True):
    """The start of one rank; ``began_ns`` by the Weaver's clock, ``phase`` empty at its end."""

    began_ns: int
    phase: str
    seconds: dict[str, float]

    def boundaries_ns(self, as_of_ns: int) -> list[int]:
        """Return the end of each phase of a start; that of an unfinished one is ``as_of_ns``."""
        at_ns, ends = self.began_ns, []
        for name in start.PHASES:
            at_ns += round(self.seconds.get(name, 0.0) * SECOND_NS)
            ends.append(at_ns)
        if self.phase in start.PHASES:
            open_ns = max(0, as_of_ns - at_ns)
            first = start.PHASES.index(self.phase)
            ends[first:] = [end + open_ns for end in ends[first:]]
        return ends


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """A recovery, as far as it is known.

    Attributes
    ----------
    group : str
        The replica group that was lost.
    cause : str
        What happened, such as ``g0-1 was killed by SIGKILL after step 40``.
    node : str
        The node of the worker that was lost first.
    step : int
        The last step of that worker, -1 before its first.
    lost_ns, ended_ns : int
        From the fault to the first committed step, ns since the epoch; None: not over.
    phases : dict of str to float
        Phase to seconds, in order; they add up to ``total_s``.
    phase : str
        The phase that it is in, empty once it is over.
    total_s : float
        Seconds until its end, or until now.
    longest : str
        The longest phase.
    advice : str
        What would shorten the longest phase.
    failed_starts : int
        Starts within it that failed.
    by : str
        The group that trains in its place; the group itself if its workers came back.
    nodes : tuple of str
        The nodes of the workers that came back.
    stood_still_s : float
        Seconds for which a rank of the other groups finished no step, at most; None: there is no
        other group.
    """

    group: str
    cause: str
    node: str
    step: int
    lost_ns: int
    ended_ns: int | None
    phases: dict[str, float]
    phase: str
    total_s: float
    longest: str
    advice: str
    failed_starts: int
    by: str
    nodes: tuple[str, ...]
    stood_still_s: float | None


def divided(
    lost_ns: int,
    milestones: Iterable[tuple[str, int]],
    ranks: Sequence[RankStart],
    as_of_ns: int,
) -> tuple[dict[str, float], int]:
    """Return the seconds of each phase, and the end of the last.

    Parameters
    ----------
    lost_ns : int
        The fault.
    milestones : iterable of (str, int)
        The phases before the ranks' starts, in order, and their ends; all by the Weaver's clock.
    ranks : sequence of RankStart
        The ranks' starts; if any is over, only those that are.
    as_of_ns : int
        The end of what is not over.
    """
    over = [rank for rank in ranks if not rank.phase]
    ends = [rank.boundaries_ns(as_of_ns) for rank in over or ranks]
    latest = [max(of_ranks) for of_ranks in zip(*ends, strict=True)]
    bounds = [*milestones, *zip(start.PHASES, latest, strict=False)]
    if not ranks:
        bounds[-1] = bounds[-1][0], as_of_ns
    phases: dict[str, float] = {}
    at_ns = lost_ns
    for name, end_ns in bounds:
        spent_ns = end_ns - at_ns
        if spent_ns > 0:  # clocks of several hosts may disagree
            phases[name] = spent_ns / SECOND_NS
            at_ns = end_ns
    return phases, at_ns
