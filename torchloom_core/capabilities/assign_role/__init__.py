"""Assign a role: a group leaves, and its nodes run another program of the run."""

import msgspec

from torchloom_core.wire.capability import Action, Target


class AssignRole(
    msgspec.Struct, Action, frozen=True, kw_only=True, tag_field="kind", tag="assign_role"
):
    """``group`` leaves at a step boundary; the agents of its nodes start the program of ``to``.

    Examples
    --------
    >>> from torchloom_core.plugin import AssignRole
    >>> AssignRole(group="n3", to="rollout")
    AssignRole(group='n3', to='rollout')
    """

    group: Target
    to: Target
