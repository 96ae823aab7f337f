"""The kill switch, and what a person can ask to be done: ``torchloom migrate`` and the like.

Each is a proposal like a policy's: the arbiter has the last word, and the command tells it.
"""

from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from torchloom_core.cli.options import Connection, Wait
from torchloom_core.cli.times import Duration
from torchloom_core.cli.weaver_client import act
from torchloom_core.errors import RequestError
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
    """Stop all actions at once, also those under way; training goes on."""
    act(connection, "actions.stop")


def resume_actions(*, connection: Connection = _HERE) -> None:
    """Let the Weaver act again."""
    act(connection, "actions.resume")


def approve(proposal: str, /, *, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Approve a proposal that waits for a person.

    Parameters
    ----------
    proposal
        Its id, as torchloom status shows it.
    """
    act(connection, "approve", {"proposal": proposal}, wait_s=wait)


def deny(proposal: str, /, *, reason: str = "", connection: Connection = _HERE) -> None:
    """Deny a proposal that waits for a person, for good.

    Parameters
    ----------
    proposal
        Its id, as torchloom status shows it.
    reason
        Why, for the run's record.
    """
    act(connection, "deny", {"proposal": proposal, "reason": reason})


def migrate(group: str, /, *, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Let a warm standby join, then drain a replica group.

    Parameters
    ----------
    group
        The replica group.
    """
    _propose(Migrate(group=group), wait, connection)


def admit(group: str, /, *, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Let a standby group join the run for good; nobody leaves for it.

    Parameters
    ----------
    group
        The replica group that stands by.
    """
    _propose(AdmitGroup(group=group), wait, connection)


def drain(group: str, /, *also: str, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Drain replica groups at a step boundary, without a replacement.

    Parameters
    ----------
    group
        The replica group.
    also
        More groups, which leave at the same step.
    """
    _propose(DrainGroup(group=group, also=also), wait, connection)


def checkpoint(
    group: str | None = None, /, *, wait: Wait = _WAIT_S, connection: Connection = _HERE
) -> None:
    """Save a checkpoint at the next step boundary.

    Parameters
    ----------
    group
        Only in this replica group.
    """
    _propose(SaveCheckpoint(group=group), wait, connection)


def pause(*, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Pause every worker at its next step boundary.

    All at one step, where they can agree on it, as under torchft; elsewhere each at its own, and
    a pause that lands on different steps is undone within two seconds: ask again. For a look at a
    run, not to keep GPUs idle for long. It lasts until torchloom resume, torchloom actions stop or
    the end of the Weaver, and under torchft for at most 0.8 of the Manager's quorum_timeout.
    """
    _propose(PauseRun(), wait, connection)


def resume(*, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Let every paused worker go on.

    This is about training; the kill switch is released by torchloom actions resume.
    """
    _propose(ResumeRun(), wait, connection)


def rewind(*, skip: int = 0, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Have all ranks go back to the last checkpoint, at one step.

    Parameters
    ----------
    skip
        How many batches to skip from there.
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
    """Free the others of a replica group that hangs.

    Parameters
    ----------
    group
        The group that hangs.
    then
        Whether it may come back by itself (wait), is ended so that whoever started it starts it
        again (restart), or is ended while a standby takes its place (replace).
    """
    _propose(EvictGroup(group=group, then=then), wait, connection)


def dump(worker: str, /, *, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Collect a worker's stacks and, where there is one, the Flight Recorder's dump.

    Parameters
    ----------
    worker
        The worker.
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
    """Measure the link from one worker to another: what it carries, and its latency.

    Sidecars measure it where TORCHLOOM_LINK_ADDRESS is set; trainers go on.

    Parameters
    ----------
    sender
        The worker that sends.
    receiver
        The worker that receives.
    more
        More senders, each followed by its receiver: nobody twice, and all at the same time.
    probe_bytes
        How much is sent over each link.
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
    """Put nobody new on a node; who trains there stays.

    Of two cordons of a node the longer one holds.

    Parameters
    ----------
    node
        The node.
    lasts
        For how long, such as 2d or 1h30m; until somebody uncordons it unless given.
    """
    lasts_s = None if lasts is None else lasts.total_seconds()
    _propose(CordonNode(node=node, lasts_s=lasts_s), 0.0, connection)


def uncordon(node: str, /, *, connection: Connection = _HERE) -> None:
    """Let workers be put on a node again.

    Parameters
    ----------
    node
        The node.
    """
    _propose(UncordonNode(node=node), 0.0, connection)


def annotate(text: str, /, *, connection: Connection = _HERE) -> None:
    """Add an annotation to the run's record; it changes nothing.

    Parameters
    ----------
    text
        The annotation.
    """
    act(connection, "annotate", {"text": text})


def _propose(action: Action, wait_s: float, connection: Connection) -> None:
    act(connection, "propose", {"action": action}, wait_s=wait_s)
