"""The kill switch, approvals and annotations; an action's own command is in its capability."""

from typing import Annotated

from cyclopts import Parameter

from torchloom_core.cli.options import HERE, WAIT_S, Connection, Wait
from torchloom_core.cli.weaver_client import act

_Proposal = Annotated[str, Parameter(help="ID of the proposal, as torchloom status shows it.")]
_Text = Annotated[str, Parameter(help="Text of the annotation.")]


def stop_actions(*, connection: Connection = HERE) -> None:
    """Stop all actions at once, including those in progress; training continues."""
    act(connection, "actions.stop")


def resume_actions(*, connection: Connection = HERE) -> None:
    """Allow actions again."""
    act(connection, "actions.resume")


def approve(proposal: _Proposal, /, *, wait: Wait = WAIT_S, connection: Connection = HERE) -> None:
    """Approve a pending proposal."""
    act(connection, "approve", {"proposal": proposal}, wait_s=wait)


def deny(proposal: _Proposal, /, *, reason: str = "", connection: Connection = HERE) -> None:
    """Deny a pending proposal.

    Parameters
    ----------
    reason
        Reason to record.
    """
    act(connection, "deny", {"proposal": proposal, "reason": reason})


def annotate(text: _Text, /, *, connection: Connection = HERE) -> None:
    """Add an annotation to the run's record; training is not affected."""
    act(connection, "annotate", {"text": text})
