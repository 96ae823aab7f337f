"""The costs of checkpoints and restarts as a run recorded them, for a backtest.

``torchloom evaluate --costs-from`` reads them from a trajectory: what a save cost in each tier from
the notes ``checkpoint_saved``, detection and restart from the recoveries.
"""

import statistics
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import StateError
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.live.trajectory.recorded_recoveries import recorded_recoveries
from torchloom_core.live.trajectory.recovery_phases import DETECT, Recovery
from torchloom_core.wire.checkpoint_tiers import MEMORY, PATH, REMOTE, SAVED
from torchloom_core.wire.messages import Note
from torchloom_core.wire.start_phases import RESTORE

DURABLE = (PATH, REMOTE)
"""The tiers whose checkpoints outlive any node, the one that saves more often first."""

_LONGEST_S = 1e9


class SaveCost(msgspec.Struct, frozen=True):
    """What a save in a tier cost the run: the median, seconds, of so many saves."""

    felt_s: float
    saves: int


class MeasuredCosts(msgspec.Struct, frozen=True, kw_only=True):
    """The measured costs of a run.

    Attributes
    ----------
    source : str
        The trajectory, as it was named.
    tiers : dict of str to SaveCost
        By tier: ``memory``, ``path``, ``remote``.
    detect_s, restart_s, restore_s : float
        Medians over the recoveries: from the fault to its report, from there to the first committed
        step, and the part of that in which a checkpoint was loaded.
    recoveries : int
        Their number; without any the three are 0, and the config's apply.
    """

    source: str
    tiers: dict[str, SaveCost]
    detect_s: float = 0.0
    restart_s: float = 0.0
    restore_s: float = 0.0
    recoveries: int = 0

    @property
    def checkpoint_s(self) -> float | None:
        """What a checkpoint costs that outlives any node, else one in memory; None: unknown."""
        known = [self.tiers[name] for name in (*DURABLE, MEMORY) if name in self.tiers]
        return known[0].felt_s if known else None

    @property
    def in_words(self) -> str:
        """One line for a report: each cost, and how many saves and recoveries it rests on."""
        saves = [
            f"{cost.felt_s:.3g} s in the tier {name} (saves: {cost.saves})"
            for name, cost in self.tiers.items()
        ]
        words = f"Costs are medians of the run in {self.source}: a save delays it by "
        words += ", ".join(saves) if saves else "checkpoint_s of the config, as none is recorded"
        if not self.recoveries:
            return f"{words}; detection and restart are the config's, as no recovery is recorded."
        return (
            f"{words}; detection takes {self.detect_s:.3g} s, and a restart {self.restart_s:.3g} "
            f"s, of which {self.restore_s:.3g} s to load a checkpoint (recoveries: "
            f"{self.recoveries})."
        )

    def applied_to(self, config: Config) -> Config:
        """Return the config with these costs."""
        costs, evaluate, save_s = config.costs, config.evaluate, self.checkpoint_s
        if save_s is not None:
            costs = replace(costs, checkpoint_s=save_s)
            evaluate = replace(evaluate, proactive_checkpoint_s=save_s)
        if self.recoveries:
            costs = replace(costs, detect_s=self.detect_s, restart_s=self.restart_s)
        return replace(config, costs=costs, evaluate=evaluate)


def measured_costs(trajectory: Path) -> MeasuredCosts:
    """Return the costs that a trajectory has; StateError if it has none, or is damaged."""
    saves: dict[str, list[tuple[float, float]]] = {}
    for record in read_epochs(trajectory):
        for recorded in record.inputs():
            note = recorded.message
            if isinstance(note, Note) and note.kind == SAVED:
                tier, cost_s = note.fields.get("tier"), _cost_s(note.fields)
                if tier in (MEMORY, *DURABLE) and cost_s is not None:
                    saves.setdefault(str(tier), []).append(cost_s)
    over = [one for one in recorded_recoveries(trajectory) if one.ended_ns is not None]
    if not saves and not over:
        raise StateError(
            f"--costs-from {trajectory}: need a run that saved with loom.checkpoints or recovered "
            f"from a failure, was one without either"
        )
    return MeasuredCosts(
        source=str(trajectory),
        tiers={
            name: SaveCost(
                max(map(statistics.median, zip(*saves[name], strict=True))), len(saves[name])
            )
            for name in (MEMORY, *DURABLE)
            if name in saves
        },
        **(_recovery_times(over) if over else {}),
        recoveries=len(over),
    )


def _cost_s(fields: Mapping[str, object]) -> tuple[float, float] | None:
    """Return what the run felt of a save, and how long it waited, seconds; None if unknown."""
    felt_s, blocked_s = (fields.get(name) for name in ("felt_s", "blocked_s"))
    if not isinstance(felt_s, int | float) or not isinstance(blocked_s, int | float):
        return None
    is_valid = all(0 <= seconds <= _LONGEST_S for seconds in (felt_s, blocked_s))
    return (float(felt_s), float(blocked_s)) if is_valid else None


def _recovery_times(over: list[Recovery]) -> dict[str, float]:
    detect_s = [one.phases.get(DETECT, 0.0) for one in over]
    return {
        "detect_s": statistics.median(detect_s),
        "restart_s": statistics.median(
            one.total_s - own_s for one, own_s in zip(over, detect_s, strict=True)
        ),
        "restore_s": statistics.median(one.phases.get(RESTORE, 0.0) for one in over),
    }
