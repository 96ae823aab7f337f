"""The kill switch, and the actions that a person can request, such as ``torchloom migrate``.

Each action is a proposal, as a policy's is: the arbiter decides, the command prints its verdict.
"""

from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from torchloom_core.cli.options import Connection, Wait
from torchloom_core.cli.times import Duration
from torchloom_core.cli.weaver_client import act
from torchloom_core.floor.errors import RequestError
from torchloom_core.wire.actions import (
    Action,
    AdmitGroup,
    CollectDump,
    CordonNode,
    DrainGroup,
    EvictGroup,
    Migrate,
    PauseRun,
    ProbeLinks,
    ResumeRun,
    RewindRun,
    SaveCheckpoint,
    UncordonNode,
)
from torchloom_core.wire.links import MAX_PROBE_BYTES, MIN_PROBE_BYTES

_HERE = Connection()
_WAIT_S = 60.0

_ProbeBytes = Annotated[int, Parameter(validator=Number(gte=MIN_PROBE_BYTES, lte=MAX_PROBE_BYTES))]


def stop_actions(*, connection: Connection = _HERE) -> None:
    """Stop all actions at once, including those in progress; training continues."""
    act(connection, "actions.stop")


def resume_actions(*, connection: Connection = _HERE) -> None:
    """Allow actions again."""
    act(connection, "actions.resume")


def approve(proposal: str, /, *, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Approve a pending proposal.

    Parameters
    ----------
    proposal
        ID of the proposal, as torchloom status shows it.
    """
    act(connection, "approve", {"proposal": proposal}, wait_s=wait)


def deny(proposal: str, /, *, reason: str = "", connection: Connection = _HERE) -> None:
    """Deny a pending proposal.

    Parameters
    ----------
    proposal
        ID of the proposal, as torchloom status shows it.
    reason
        Reason to record.
    """
    act(connection, "deny", {"proposal": proposal, "reason": reason})


def migrate(group: str, /, *, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Add a warm standby to the quorum, then drain a replica group.

    Parameters
    ----------
    group
        Name of the replica group.
    """
    _propose(Migrate(group=group), wait, connection)


def admit(group: str, /, *, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Let a standby group join the run permanently; no other group leaves.

    Parameters
    ----------
    group
        Name of the standby replica group.
    """
    _propose(AdmitGroup(group=group), wait, connection)


def drain(group: str, /, *also: str, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Drain replica groups at a step boundary, without a replacement.

    Parameters
    ----------
    group
        Name of the replica group.
    also
        More replica groups, which leave at the same step.
    """
    _propose(DrainGroup(group=group, also=also), wait, connection)


def checkpoint(
    group: str | None = None, /, *, wait: Wait = _WAIT_S, connection: Connection = _HERE
) -> None:
    """Save a checkpoint at the next step boundary.

    Parameters
    ----------
    group
        Replica group that saves. Default: all groups.
    """
    _propose(SaveCheckpoint(group=group), wait, connection)


def pause(*, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Pause every worker at its next step boundary.

    Under torchft all workers pause at the same step. Elsewhere each pauses at its own next step;
    if the steps differ, the pause is undone within two seconds and can be repeated. The pause
    lasts until torchloom resume, torchloom actions stop or the end of the Weaver, and under
    torchft for at most 0.8 of the Manager's quorum_timeout.
    """
    _propose(PauseRun(), wait, connection)


def resume(*, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Resume training in every paused worker.

    To release the kill switch, use torchloom actions resume.
    """
    _propose(ResumeRun(), wait, connection)


def rewind(*, skip: int = 0, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Return all ranks to the last checkpoint, at the same step.

    Parameters
    ----------
    skip
        Number of batches to skip after the checkpoint.
    """
    _propose(RewindRun(skip=skip), wait, connection)


def evict(
    group: str,
    /,
    *,
    then: Literal["wait", "restart", "replace"] = "restart",
    wait: Wait = _WAIT_S,
    connection: Connection = _HERE,
) -> None:
    """Evict a hung replica group from the quorum.

    Parameters
    ----------
    group
        Name of the hung replica group.
    then
        What follows. wait: the group may rejoin by itself. restart: its processes are ended, and
        their launcher restarts them. replace: they are ended, and a standby takes the place.
    """
    _propose(EvictGroup(group=group, then=then), wait, connection)


def dump(worker: str, /, *, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Collect a worker's stack traces and, if there is one, its Flight Recorder dump.

    Parameters
    ----------
    worker
        Name of the worker.
    """
    _propose(CollectDump(worker=worker), wait, connection)


def probe(
    sender: str,
    receiver: str,
    /,
    *more: str,
    probe_bytes: _ProbeBytes = 1 << 20,
    wait: Wait = _WAIT_S,
    connection: Connection = _HERE,
) -> None:
    """Measure the bandwidth and latency of the link from one worker to another.

    The sidecars measure it while training continues; TORCHLOOM_LINK_ADDRESS must be set there.

    Parameters
    ----------
    sender
        Worker that sends.
    receiver
        Worker that receives.
    more
        More pairs of sender and receiver, measured at the same time; each worker at most once.
    probe_bytes
        Bytes to send over each link.
    """
    named = (sender, receiver, *more)
    if len(named) % 2:
        raise RequestError(f"probe: need a receiver after {named[-1]!r}, was nothing")
    pairs = tuple(zip(named[::2], named[1::2], strict=True))
    try:
        action = ProbeLinks(pairs=pairs, probe_bytes=probe_bytes)
    except ValueError as error:
        raise RequestError(f"probe: {error}") from None
    _propose(action, wait, connection)


def cordon(
    node: str,
    /,
    *,
    lasts: Annotated[Duration | None, Parameter(name="--for")] = None,
    connection: Connection = _HERE,
) -> None:
    """Cordon a node: torchLoom uses no standby on it; workers there keep training.

    If a node is cordoned twice, the longer cordon applies.

    Parameters
    ----------
    node
        Name of the node.
    lasts
        Duration, such as 2d or 1h30m. Default: until torchloom uncordon.
    """
    lasts_s = None if lasts is None else lasts.total_seconds()
    _propose(CordonNode(node=node, lasts_s=lasts_s), 0.0, connection)


def uncordon(node: str, /, *, connection: Connection = _HERE) -> None:
    """Uncordon a node: torchLoom may use its standbys again.

    Parameters
    ----------
    node
        Name of the node.
    """
    _propose(UncordonNode(node=node), 0.0, connection)


def annotate(text: str, /, *, connection: Connection = _HERE) -> None:
    """Add an annotation to the run's record; training is not affected.

    Parameters
    ----------
    text
        Text of the annotation.
    """
    act(connection, "annotate", {"text": text})


def _propose(action: Action, wait_s: float, connection: Connection) -> None:
    act(connection, "propose", {"action": action}, wait_s=wait_s)
