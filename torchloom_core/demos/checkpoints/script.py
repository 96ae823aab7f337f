"""The script of the checkpoints demo: the job, its tiers, and the failures that it goes through."""

from dataclasses import dataclass

from torchloom_core.demos.scenario import Place, Training
from torchloom_core.wire.checkpoint_tiers import MEMORY, PATH, REMOTE

EVERY_S = {MEMORY: 4.0, PATH: 10.0, REMOTE: 12.0}
"""The script's own intervals, with which the job starts, seconds."""

TRAINING = Training(
    config="checkpoints.toml",
    has_lighthouse=False,
    heartbeat_s=0.2,
    steps=100_000,
    step_ms=150.0,
    places=(
        Place("g0-0", "node-0", "rack-0"),
        Place("g0-1", "node-1", "rack-1"),
        Place("g0-2", "node-2", "rack-2"),
    ),
)


@dataclass(frozen=True)
class Fault:
    """What fails: the nodes of these ranks with their memory, or only the ranks' processes.

    The newest checkpoint in memory is ``apart`` steps past that in the remote tier then, at least.
    """

    ranks: tuple[int, ...]
    nodes: bool = False
    apart: int = 1

    def text(self, nodes: list[str]) -> str:
        """Return what fails, in words; ``nodes`` are those of the ranks."""
        lost = [nodes[rank] for rank in self.ranks]
        if self.nodes:
            return f"{' and '.join(lost)} lost"
        return f"process on {', '.join(lost)}"


SCRIPT = (
    Fault((1,), nodes=True, apart=20),
    Fault((2,)),
    Fault((0,)),
    Fault((1, 2), nodes=True),
)
SAVES, SETTLE_S = 3, 1.0
"""Saves in memory between two failures, at least, and the time that the policy has afterwards: what
a save costs is measured from the second one on."""
LAST_S = 3.0
"""Training after the last failure, seconds."""
