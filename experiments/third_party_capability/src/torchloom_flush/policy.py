"""Propose a flush once much work would be lost with an unfinished checkpoint."""

from collections.abc import Iterable

import msgspec
import numpy as np
from torchloom_core.plugin import UNSAVED_WORK, FleetView, Need, Positive, Proposal, unsaved_work_s

from torchloom_flush import FlushCheckpoints


class FlushWatch:
    """Proposes one flush whenever the unsaved work grows beyond ``unsaved_s``."""

    name = "flush_watch"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.flush_watch]``.

        Attributes
        ----------
        unsaved_s : float
            Work since the last checkpoint that is worth a flush, seconds.
        failures_per_day : float
            Failures of the run that are expected per day.
        """

        unsaved_s: Positive = 1800.0
        failures_per_day: Positive = 4.0

    def __init__(self, options: Options) -> None:
        self._options = options
        self._is_armed = True
        self.needs = (Need(UNSAVED_WORK), Need("unwritten_bytes", optional=True))

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Look at the unsaved work once a tick."""
        unsaved_s = unsaved_work_s(view)
        if unsaved_s is None or unsaved_s < self._options.unsaved_s:
            self._is_armed = True
        elif self._is_armed:
            self._is_armed = False
            gpus = view.costs.gpus_per_worker * np.count_nonzero(view.is_in("training"))
            failures = self._options.failures_per_day * unsaved_s / 86400.0
            yield Proposal(
                action=FlushCheckpoints(),
                reason=f"{unsaved_s:.0f} s of work are not on disk{_unwritten_text(view)}",
                gain_gpu_s=float(unsaved_s * gpus),
                cost_gpu_s=float(view.costs.checkpoint_s * gpus),
                confidence=min(1.0, failures),
            )


def _unwritten_text(view: FleetView) -> str:
    unwritten = view.latest("unwritten_bytes")
    if np.isnan(unwritten).all():
        return ""  # no worker has the collector
    return f", and up to {np.nanmax(unwritten) / 1e6:.0f} MB of a node"
