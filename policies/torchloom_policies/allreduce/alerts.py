"""Tell people once what keeps the allreduce from being tuned as it might be."""

import math
from collections.abc import Iterator

from torchloom_core.plugin import Alert, FleetView, Proposal
from torchloom_policies.allreduce.modes import PRIORS
from torchloom_policies.allreduce.options import AllreduceTunerOptions
from torchloom_policies.allreduce.tuned_run import MODE, TunedRun

_MOST = 100
_SILENT_S, _SILENT_STEPS = 60.0, 2


class Alerts:
    """Each text once, by an alert of the first worker."""

    def __init__(self, options: AllreduceTunerOptions) -> None:
        self._named = dict.fromkeys((*options.modes, *options.quality))
        self._told: set[str] = set()
        self._since_s, self._since_step = math.nan, -1

    def tell(self, text: str, view: FleetView, run: TunedRun) -> Iterator[Proposal]:
        """Propose an alert where there is a text that was not told yet."""
        if text and text not in self._told and len(self._told) < _MOST:
            self._told.add(text)
            yield Proposal(action=Alert(worker=view.workers[run.rows[0]], text=text), reason=text)

    def tell_of_names(self, view: FleetView, run: TunedRun) -> Iterator[Proposal]:
        """Say which names in the options are of no mode."""
        modes = {*PRIORS, *run.specs[MODE].choices}
        wrong = ", ".join(name for name in self._named if name not in modes)
        if wrong:
            text = f"modes, quality: need names of modes that the knob {MODE} offers, not {wrong}"
            yield from self.tell(text, view, run)

    def tell_of_silence(self, view: FleetView, run: TunedRun) -> Iterator[Proposal]:
        """Say, after a while in which no step was seen, that nobody reports what is needed."""
        if math.isnan(self._since_s):
            self._since_s, self._since_step = view.now_s, run.step
        if view.now_s - self._since_s > _SILENT_S and run.step > self._since_step + _SILENT_STEPS:
            text = "the allreduce is left as it is: no worker reports sent_bytes and wire_s"
            yield from self.tell(text, view, run)
