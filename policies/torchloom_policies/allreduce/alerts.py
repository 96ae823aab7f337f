"""Alert once per reason that prevents the tuning of the allreduce."""

import math
from collections.abc import Iterator

from torchloom_core.plugin import Alert, FleetView, Proposal
from torchloom_policies.allreduce.modes import PRIORS
from torchloom_policies.allreduce.options import AllreduceTunerOptions
from torchloom_policies.allreduce.tuned_run import MODE, TunedRun

_MOST = 100
_SILENT_S, _SILENT_STEPS = 60.0, 2


class Alerts:
    """Alerts of the first worker, each text once."""

    def __init__(self, options: AllreduceTunerOptions) -> None:
        self._named = dict.fromkeys((*options.modes, *options.quality))
        self._sent: set[str] = set()
        self._since_s, self._since_step = math.nan, -1

    def alert(self, text: str, view: FleetView, run: TunedRun) -> Iterator[Proposal]:
        """Propose an alert with this text, unless it is empty or was sent before."""
        if text and text not in self._sent and len(self._sent) < _MOST:
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
