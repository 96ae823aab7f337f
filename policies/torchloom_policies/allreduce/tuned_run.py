"""The knobs that the allreduce tuner may change in a run at one tick, or why it may not."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from torchloom_core.plugin import Alert, FleetView, KnobSpec, KnobValue, Proposal
from torchloom_policies.allreduce.modes import PRIORS, AllreduceTunerOptions

MODE, RING, EVERY = "compression", "ring_order", "sync_every"
PIECES, BUCKET = "concurrent_allreduces", "bucket_bytes"
_KINDS = {MODE: "choice", RING: "order", EVERY: "int", PIECES: "int", BUCKET: "int"}
_NO_KNOB = (
    f"the allreduce is not tuned: need the run-fenced knob {MODE}, which a "
    "CompressedProcessGroup offers if the Manager has use_async_quorum=False"
)
_NO_KNOB_ON = f"the allreduce is not tuned: need the knob {MODE} on all workers, missing on "
_MOST_ALERTS = 100
_SILENT_S, _SILENT_STEPS = 60.0, 2


@dataclass(frozen=True)
class TunedRun:
    """The part of a run that reduces together: the rows of the training workers.

    ``groups`` are their replica groups in torchft's order, each with its first row; ``step`` is the
    median, on which a single wrong report has no effect. ``settings`` are the values of the
    run-fenced knobs that all of them have, empty while they differ. ``trouble`` is why nothing can
    be tuned, or empty.
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
            trouble = trouble or (_NO_KNOB if knob == MODE else "")
            continue
        values = view.knob(knob)
        without = [view.workers[row] for row in rows if values[row] is None]
        if without:
            if knob == MODE:
                trouble = trouble or f"{_NO_KNOB_ON}{listed(without)}"
            continue
        of_all = {value for row in rows if (value := values[row]) is not None}
        if len(of_all) > 1:
            return TunedRun(rows, groups, step, {}, {})  # a change is landing
        specs[knob], settings[knob] = spec, of_all.pop()
    return TunedRun(rows, groups, step, {} if trouble else settings, specs, trouble)


def listed(workers: list[str]) -> str:
    """Return the names of up to three workers, and how many more there are."""
    return ", ".join(workers[:3]) + (f" and {len(workers) - 3} more" if workers[3:] else "")


class Alerts:
    """Alerts of what prevents the tuning, for the first worker, each text once."""

    def __init__(self, options: AllreduceTunerOptions) -> None:
        self._named = dict.fromkeys((*options.modes, *options.quality))
        self._sent: set[str] = set()
        self._since_s, self._since_step = math.nan, -1

    def alert(self, text: str, view: FleetView, run: TunedRun) -> Iterator[Proposal]:
        """Propose an alert with this text, unless it is empty or was sent before."""
        if text and text not in self._sent and len(self._sent) < _MOST_ALERTS:
            self._sent.add(text)
            yield Proposal(action=Alert(worker=view.workers[run.rows[0]], text=text), reason=text)

    def alert_unknown_modes(self, view: FleetView, run: TunedRun) -> Iterator[Proposal]:
        """Propose an alert for names in the options that are not modes."""
        modes = {*PRIORS, *run.specs[MODE].choices}
        wrong = ", ".join(name for name in self._named if name not in modes)
        if wrong:
            text = f"modes, quality: need modes that the knob {MODE} offers, was {wrong}"
            yield from self.alert(text, view, run)

    def alert_missing_metrics(self, view: FleetView, run: TunedRun) -> Iterator[Proposal]:
        """Propose an alert if no worker has reported the needed metrics for a minute."""
        if math.isnan(self._since_s):
            self._since_s, self._since_step = view.now_s, run.step
        if view.now_s - self._since_s > _SILENT_S and run.step > self._since_step + _SILENT_STEPS:
            text = "the allreduce is not tuned: need a worker that reports sent_bytes and wire_s"
            yield from self.alert(text, view, run)
