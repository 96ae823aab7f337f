"""What the allreduce tuner may turn in a run at one tick, or why it may turn nothing."""

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
        Who trains.
    groups : dict of str to int
        Their replica groups, in torchft's order, each with its first row.
    step : int
        At which most of them are: one that says another by mistake is not believed.
    settings : dict
        What the run-fenced knobs are that all of them have; empty while they differ.
    specs : dict of str to KnobSpec
        Of these knobs.
    trouble : str
        Why nothing can be tuned, or nothing.
    """

    rows: list[int]
    groups: dict[str, int]
    step: int
    settings: dict[str, KnobValue]
    specs: dict[str, KnobSpec]
    trouble: str = ""

    @property
    def mode(self) -> str:
        """How gradients are compressed now."""
        return str(self.settings[MODE])

    @property
    def every(self) -> int:
        """Steps from one synchronisation to the next."""
        every = self.settings.get(EVERY, 1)
        return max(1, every) if isinstance(every, int) else 1

    @property
    def ring(self) -> list[str]:
        """In which order the groups stand in the ring."""
        named = [name for name in str(self.settings.get(RING, "")).split(",") if name]
        first = [name for name in dict.fromkeys(named) if name in self.groups]
        return first + [name for name in self.groups if name not in first]

    def modes(self, wanted: Iterable[str]) -> list[str]:
        """Return those of ``wanted`` that the knob offers."""
        return [mode for mode in wanted if mode in self.specs[MODE].choices]


def tuned_run(view: FleetView) -> TunedRun | None:
    """Return what can be tuned, None where no two groups train or the run is held up."""
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
        f"the allreduce is left as it is: need the run-fenced knob {MODE}, which a "
        "CompressedProcessGroup brings where the Manager has use_async_quorum=False"
    )


def _lacks(workers: list[str]) -> str:
    names = ", ".join(workers[:3]) + (f" and {len(workers) - 3} more" if workers[3:] else "")
    return f"the allreduce is left as it is: need the knob {MODE} on all, not on {names}"
