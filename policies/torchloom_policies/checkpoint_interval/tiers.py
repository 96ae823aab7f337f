"""The tiers of a run's checkpoints: what a save costs in each, and which failures each is for."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from torchloom_core.plugin import (
    CHECKPOINT_TIERS,
    UNSAVED_WORK,
    FleetView,
    Need,
    RunFailures,
)
from torchloom_policies.number_knobs import numbers

MEMORY, PATH, REMOTE = CHECKPOINT_TIERS

FELT_NEEDS = tuple(Need(tier.felt, optional=True) for tier in CHECKPOINT_TIERS.values())
"""The metrics of what a save costs; ``loom.checkpoints`` reports them."""

UNSAVED_NEEDS = tuple(
    Need(tier.unsaved, optional=tier.unsaved != UNSAVED_WORK) for tier in CHECKPOINT_TIERS.values()
)
"""The metrics of what a failure would lose that spares the tier."""

_PRIOR_SHARE, _PRIOR_FAILURES = 0.1, 1.0
"""Share of failures beyond one node assumed before any, and of these beyond one rack; and the
weight of that, in failures. In published fleets about nine of ten failures are of one node."""


@dataclass(frozen=True, kw_only=True)
class Tier:
    """A tier that the script offers.

    ``values`` are the present intervals of the training workers; ``save_s`` is what a save costs
    the run, None where it was not measured; ``share`` is that of the failures which no tier before
    this one survives, and this one is for.
    """

    name: str
    knob: str
    values: tuple[float, ...]
    save_s: float | None
    share: float

    def unsaved_s(self, view: FleetView) -> float | None:
        """Return the work that a failure now would lose, seconds; None if it is not reported."""
        return largest(view, CHECKPOINT_TIERS[self.name].unsaved)


def offered(
    path_knob: str, training: list[int], view: FleetView, failures: RunFailures
) -> list[Tier]:
    """Return the tiers whose knobs the script offers, the least durable first.

    The memory of nodes survives the loss of a process or of one node. The path is for failures of
    several nodes, the remote tier for those of several racks, which may take the path's storage
    with them. A tier is also for what an absent one before it would be for.
    """
    knobs = {name: tier.knob for name, tier in CHECKPOINT_TIERS.items()} | {PATH: path_knob}
    values = {name: numbers(knob, training, view) for name, knob in knobs.items()}
    present = [name for name in knobs if values[name]]
    reach = dict(_reached(failures))
    found, before = [], 0.0
    for number, name in enumerate(present):
        is_last = number == len(present) - 1
        upto = 1.0 if is_last else 1.0 - reach[name]
        tier = Tier(
            name=name,
            knob=knobs[name],
            values=tuple(values[name]),
            save_s=largest(view, CHECKPOINT_TIERS[name].felt),
            share=upto - before,
        )
        found.append(tier)
        before = upto
    return found


def _reached(failures: RunFailures) -> Iterator[tuple[str, float]]:
    """Yield the share of failures that each tier does not survive."""
    several = _posterior(failures.several_nodes, failures.count)
    yield MEMORY, several
    yield PATH, several * _posterior(failures.several_racks, failures.several_nodes)


def _posterior(seen: int, of: int) -> float:
    return (_PRIOR_SHARE * _PRIOR_FAILURES + seen) / (_PRIOR_FAILURES + max(of, seen))


def least_felt_s(view: FleetView) -> float | None:
    """Return what a save costs in the tier where it costs least; None if none was measured."""
    felt_s = [largest(view, tier.felt) for tier in CHECKPOINT_TIERS.values()]
    return min((each for each in felt_s if each is not None), default=None)


def largest(view: FleetView, metric: str) -> float | None:
    """Return the largest value that a worker of the run reports, at least 0; None without any."""
    values = np.where(view.is_in("training", "paused"), view.latest(metric), math.nan)
    valid = values[np.isfinite(values) & (values >= 0)]
    return float(valid.max()) if len(valid) else None
