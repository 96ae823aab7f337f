"""Reads the heartbeats and sections that a rank sends to its monitor, as telemetry and phases."""

import time
from contextlib import AbstractContextManager
from typing import Any

from torchloom_core.floor.errors import ConfigError
from torchloom_threadlet.adapters.replaced import replaced
from torchloom_threadlet.loom import Loom

_METHODS = ("send_heartbeat", "start_section", "end_section", "end_all_sections")
_PHASE_S = 600.0
"""Of a section without a timeout of its own."""


def follow(client: Any, loom: Loom) -> None:
    """Report a client's heartbeats and sections with the steps of ``loom``.

    ``heartbeat_interval_s`` is the longest interval between heartbeats that ended in the step,
    ``section_NAME_s`` the time in a section that ended in it. An open section is a named phase
    until its timeout, 600 s without one: until then it counts as no hang.

    Parameters
    ----------
    client : nvidia_resiliency_ext.fault_tolerance.RankMonitorClient
        The rank's own. Its calls go to the monitor as before, and raise as before.
    loom : Loom
        Of this process; nothing is read where it is inert.

    Raises
    ------
    ConfigError
        If ``client`` is no RankMonitorClient.
    """
    if missing := [name for name in _METHODS if not callable(getattr(client, name, None))]:
        was = type(client).__name__
        raise ConfigError(f"follow: need a RankMonitorClient, was {was} without {missing[0]}")
    if not loom.inert and "send_heartbeat" not in vars(client):
        _Reader(client, loom)


class _Reader:
    def __init__(self, client: Any, loom: Loom) -> None:
        self._client, self._loom = client, loom
        self._found: dict[str, float] = {}
        self._open: dict[str, tuple[float, AbstractContextManager[None]]] = {}
        self._beat_s = 0.0
        self._calls = {name: getattr(client, name) for name in _METHODS}
        self._step = loom.step
        for name in _METHODS:
            replaced(client, name, getattr(self, name))
        replaced(loom, "step", self.step)

    def send_heartbeat(self) -> None:
        self._calls["send_heartbeat"]()
        now_s, before_s = time.monotonic(), self._beat_s
        self._beat_s = now_s
        if before_s:
            longest_s = self._found.get("heartbeat_interval_s", 0.0)
            self._found["heartbeat_interval_s"] = max(longest_s, now_s - before_s)

    def start_section(self, section: str) -> None:
        self._calls["start_section"](section)
        timeouts = getattr(self._client.section_timeouts, "section", None) or {}
        phase = self._loom.phase(section, at_most_s=timeouts.get(section) or _PHASE_S)
        phase.__enter__()
        self._open[section] = time.monotonic(), phase

    def end_section(self, section: str) -> None:
        self._calls["end_section"](section)
        self._end(section)

    def end_all_sections(self) -> None:
        self._calls["end_all_sections"]()
        for section in [*self._open]:
            self._end(section)

    def step(self, step: int | None = None, **metrics: Any) -> bool:
        found, self._found = self._found, {}
        return self._step(step, **{**found, **metrics})

    def _end(self, section: str) -> None:
        if section in self._open:
            since_s, phase = self._open.pop(section)
            phase.__exit__(None, None, None)
            name, took_s = f"section_{section}_s", time.monotonic() - since_s
            self._found[name] = self._found.get(name, 0.0) + took_s
