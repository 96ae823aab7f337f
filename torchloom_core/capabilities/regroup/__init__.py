"""Regroup: the workers of a program that is split over them change to another assignment."""

from typing import Annotated

import msgspec

from torchloom_core.wire.capability import Action, Count, Name, RoleName


class RegroupWorkers(
    msgspec.Struct,
    Action,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="kind",
    tag="regroup",
):
    """Change to the cheapest assignment, after a step that all workers commit together.

    Attributes
    ----------
    role : str
        The role whose program it is; empty: the only one there is.
    without : tuple of str
        All workers that have no part from now on, until they are started again or a later change
        does not name them. Without any, standbys take a part, or layers move, if steps become
        faster.
    generation : int
        The change is made only in this generation; 0: in the present one.

    Examples
    --------
    >>> from torchloom_core.plugin import RegroupWorkers
    >>> RegroupWorkers(without=("w3",))
    RegroupWorkers(role='', without=('w3',), generation=0)
    """

    role: RoleName = ""
    without: Annotated[tuple[Name, ...], msgspec.Meta(max_length=256)] = ()
    generation: Count = 0
