"""Predictors of somebody else's, installed for a test: one that is mute, one that remembers."""

from typing import ClassVar

import msgspec
import numpy as np

from torchloom_core.plugin import Hazard, hookimpl


class _Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Mute:
    """Never says anything."""

    name = "mute"
    horizon_s = 21_600.0
    every_s = 3600.0
    needs = ()
    Options = _Options

    def __init__(self, options: _Options) -> None:
        pass

    def forecast(self, view):
        return Hazard(probability=np.full(len(view), np.nan))


class Remembering:
    """Says of every node how often it failed in all that the process was ever shown."""

    name = "remembering"
    horizon_s = 21_600.0
    every_s = 3600.0
    needs = ()
    fault_memory_s = 7200.0
    Options = _Options
    seen: ClassVar[set[tuple[str, str]]] = set()

    def __init__(self, options: _Options) -> None:
        pass

    def forecast(self, view):
        self.seen.update((fault.node, fault.id) for fault in view.faults)
        counts = [sum(node == failed for failed, _ in self.seen) for node in view.node]
        return Hazard(probability=np.array(counts, dtype=float) / (1 + max(counts, default=0)))


@hookimpl
def torchloom_register(registry):
    registry.predictor(Mute)
    registry.predictor(Remembering)
