"""The knobs that the allreduce tuner may change in a run at one tick, or why it may not."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from torchloom_core.plugin import FleetView, KnobSpec, KnobValue
from torchloom_policies.allreduce.setting_trials import BUCKET, PIECES

MODE, RING, EVERY = "compression", "ring_order", "sync_every"
_KINDS = {MODE: "choice", RING: "order", EVERY: "int", PIECES: "int", BUCKET: "int"}


@dataclass(frozen=True)
class TunedRun:
    """The part of a run that reduces together.

    Attributes
    ----------
    rows : list of int
        Rows of the training workers.
    groups : dict of str to int
        Their replica groups, in torchft's order, each with its first row.
    step : int
        The median step; a single wrong report has no effect.
    settings : dict
        Values of the run-fenced knobs that all of them have; empty while they differ.
    specs : dict of str to KnobSpec
        Specifications of these knobs.
    trouble : str
        Why nothing can be tuned, or empty.
    """

    rows: list[int]
    groups: dict[str, int]
    step: int
    settings: dict[str, KnobValue]
    specs: dict[str, KnobSpec]
    trouble: str = ""

    @property
    def mode(self) -> str:
        """The present compression mode."""
        return str(self.settings[MODE])

    @property
    def every(self) -> int:
        """Steps from one synchronisation to the next."""
        every = self.settings.get(EVERY, 1)
        return max(1, every) if isinstance(every, int) else 1

    @property
    def ring(self) -> list[str]:
        """The groups in the order of the ring."""
        named = [name for name in str(self.settings.get(RING, "")).split(",") if name]
        first = [name for name in dict.fromkeys(named) if name in self.groups]
        return first + [name for name in self.groups if name not in first]

    def modes(self, wanted: Iterable[str]) -> list[str]:
        """Return those of ``wanted`` that the knob offers."""
        return [mode for mode in wanted if mode in self.specs[MODE].choices]


def tuned_run(view: FleetView) -> TunedRun | None:
    """Return what can be tuned, None if fewer than two groups train or the run is paused."""
    rows = np.flatnonzero(view.is_in("training")).tolist()
    groups = {view.group[row]: row for row in reversed(rows)}
    groups = {name: groups[name] for name in sorted(groups)}
    if len(groups) < 2 or view.is_in("paused").any():
        return None
    step = int(np.median(view.step[rows]))
    specs, settings, trouble = {}, {}, ""
    for knob, kind in _KINDS.items():
        spec = view.knob_specs.get(knob)
        if spec is None or spec.kind != kind or spec.fence != "run":
            trouble = trouble or (_no_knob() if knob == MODE else "")
            continue
        values = view.knob(knob)
        without = [view.workers[row] for row in rows if values[row] is None]
        if without:
            trouble = trouble or (_lacks(without) if knob == MODE else "")
            continue
        of_all = {value for row in rows if (value := values[row]) is not None}
        if len(of_all) > 1:
            return TunedRun(rows, groups, step, {}, {})  # a change is landing
        specs[knob], settings[knob] = spec, of_all.pop()
    return TunedRun(rows, groups, step, {} if trouble else settings, specs, trouble)


def _no_knob() -> str:
    return (
        f"the allreduce is not tuned: need the run-fenced knob {MODE}, which a "
        "CompressedProcessGroup offers if the Manager has use_async_quorum=False"
    )


def _lacks(workers: list[str]) -> str:
    names = ", ".join(workers[:3]) + (f" and {len(workers) - 3} more" if workers[3:] else "")
    return f"the allreduce is not tuned: need the knob {MODE} on all workers, missing on {names}"
