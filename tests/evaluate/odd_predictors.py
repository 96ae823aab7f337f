"""Third-party predictors for a test, each faulty in another way."""

import os
import sys
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np

from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.plugin import Hazard, NeedFaults, hookimpl


class _Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _Odd:
    horizon_s = 21_600.0
    every_s = 3600.0
    needs = ()
    Options = _Options

    def __init__(self, options: _Options) -> None:
        pass


class Mute(_Odd):
    """Gives no forecast."""

    name = "mute"

    def forecast(self, view):
        return Hazard(probability=np.full(len(view), np.nan))


class Remembering(_Odd):
    """Forecasts from all failures that the process has ever seen."""

    name = "remembering"
    needs = (NeedFaults(7200.0),)
    seen: ClassVar[set[tuple[str, str]]] = set()

    def forecast(self, view):
        self.seen.update((fault.node, fault.id) for fault in view.faults)
        counts = [sum(node == failed for failed, _ in self.seen) for node in view.node]
        return Hazard(probability=np.array(counts, dtype=float) / (1 + max(counts, default=0)))


class Wandering(_Odd):
    """Changes the working folder, and prints; gives a constant forecast."""

    name = "wandering"

    def forecast(self, view):
        os.chdir("/")
        print("here I am")  # noqa: T201 - a careless plugin
        return Hazard(probability=np.full(len(view), 0.5))


class Closing(_Odd):
    """Closes what it prints to, and breaks."""

    name = "closing"

    def forecast(self, view):
        sys.stdout.close()
        raise RuntimeError("nothing left to say")


class Foreknowing(_Odd):
    """Reads the trace's failures from its folder, and announces each."""

    name = "foreknowing"

    def __init__(self, options: _Options) -> None:
        self._events = Bundle.open(Path("small.tltrace")).events()

    def forecast(self, view):
        until_ns = view.now_ns + int(self.horizon_s * 1e9)
        soon = {e.component for e in self._events if view.now_ns < e.t_event <= until_ns}
        return Hazard(probability=np.array([float(node in soon) for node in view.node]))


@hookimpl
def torchloom_register(registry):
    registry.predictor(Mute)
    registry.predictor(Remembering)
    registry.predictor(Wandering)
    registry.predictor(Closing)
    registry.predictor(Foreknowing)
