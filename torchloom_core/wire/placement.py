"""Where a worker stands in its run; a worker's id is a name that nobody takes apart."""

from typing import NamedTuple

import msgspec

from torchloom_core.wire.limits import Count, Name, RackName, Rank

TRAINER = "trainer"
"""The role of workers that name no other."""

NODE_AGENT = "node-agent"
"""The role of agents that start the programs of their nodes."""

ROLES_LABEL = "roles"
"""The label of such an agent with the roles that it can start, separated by spaces."""


class Position(NamedTuple):
    """A worker's place in its program."""

    role: str
    group: str
    rank: int
    stage: int
    shard: int
    generation: int

    def __str__(self) -> str:
        return f"{self.role} {self.group}-{self.rank}, stage {self.stage}, shard {self.shard}"


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's place in its program and on its machines.

    Attributes
    ----------
    role : str
        The program that it runs: workers of different roles train or serve different models.
    group : str
        Its replica group: a whole copy of what its role runs. The name is unique in the run.
    stage, shard : int
        Its stage of a pipeline and its shard of a layer, from 0.
    rank : int
        Its number in the group, unique there.
    generation : int
        Which assignment of the run it belongs to; a later one has the larger number.

    Examples
    --------
    >>> from torchloom_core.plugin import Placement
    >>> place = Placement(run="r", group="rollout-0", role="rollout", rank=1, node="n3")
    >>> place.role, place.stage, place.rack
    ('rollout', 0, '')
    """

    run: Name
    group: Name
    rank: Rank
    node: Name
    rack: RackName = ""
    role: Name = TRAINER
    stage: Rank = 0
    shard: Rank = 0
    generation: Count = 0

    def position(self) -> Position:
        """Return what one process of a worker keeps within a generation: all but node and rack."""
        return Position(self.role, self.group, self.rank, self.stage, self.shard, self.generation)
