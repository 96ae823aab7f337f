"""Parts that watch the Weaver's inputs and outputs, and decide nothing: metrics, traces.

A watcher that raises is dropped with a warning: the Weaver's work never depends on one.
"""

import logging
from collections.abc import Sequence
from typing import Protocol

from torchloom_core.wire.decisions import Output
from torchloom_core.wire.events import Input

_log = logging.getLogger(__name__)


class Watcher(Protocol):
    """Sees each input but telemetry, with its outputs, and each tick's times."""

    def took(self, message: Input, outputs: Sequence[Output], ts_ns: int) -> None:
        """Note an input that the kernel has processed."""

    def ticked(self, late_s: float, took_s: float) -> None:
        """Note how late a tick began, and how long it took."""


class Watchers:
    """The watchers of one Weaver."""

    def __init__(self) -> None:
        self._watchers: list[Watcher] = []

    def add(self, watcher: Watcher) -> None:
        """Add a watcher; it gets what comes from now on."""
        self._watchers.append(watcher)

    def took(self, message: Input, outputs: Sequence[Output], ts_ns: int) -> None:
        """Pass on an input and its outputs."""
        for watcher in tuple(self._watchers):
            try:
                watcher.took(message, outputs, ts_ns)
            except Exception:  # noqa: BLE001 - logged there
                self._drop(watcher)

    def ticked(self, late_s: float, took_s: float) -> None:
        """Pass on the times of a tick."""
        for watcher in tuple(self._watchers):
            try:
                watcher.ticked(late_s, took_s)
            except Exception:  # noqa: BLE001 - logged there
                self._drop(watcher)

    def _drop(self, watcher: Watcher) -> None:
        self._watchers.remove(watcher)
        _log.exception("%s failed and gets no more events", type(watcher).__name__)
