"""The kill switch, approvals and annotations; an action's own command is in its capability."""

from torchloom_core.cli.options import Connection, Wait
from torchloom_core.cli.weaver_client import act

_HERE = Connection()
_WAIT_S = 60.0


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


def annotate(text: str, /, *, connection: Connection = _HERE) -> None:
    """Add an annotation to the run's record; training is not affected.

    Parameters
    ----------
    text
        Text of the annotation.
    """
    act(connection, "annotate", {"text": text})
