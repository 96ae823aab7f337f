"""The points of the newest loss landscape that a browser lacks: each is sent once."""

from itertools import islice
from typing import Any

from torchloom_core.live.trajectory.landscape import Landscape


class LandscapeNews:
    """Records what one browser was sent."""

    def __init__(self) -> None:
        self._version = self._beginnings = 0
        self._line = self._cells = 0

    def take(self, landscape: Landscape) -> dict[str, Any] | None:
        """Return what is new, None if nothing is; ``new``: it replaces all earlier points."""
        if landscape.version == self._version:
            return None
        self._version = landscape.version
        is_new = landscape.restarts != self._beginnings
        if is_new:
            self._beginnings, self._line, self._cells = landscape.restarts, 0, 0
        line = list(islice(landscape.line.items(), self._line, None))
        cells = list(islice(landscape.cells.items(), self._cells, None))
        self._line, self._cells = len(landscape.line), len(landscape.cells)
        return {
            "new": is_new,
            "command": landscape.command,
            "worker": landscape.worker,
            "strangers": landscape.strangers,
            "points": landscape.points,
            "of": landscape.of,
            "bend": landscape.bend,
            "plane": landscape.plane,
            "end": landscape.end,
            "line": line,
            "cells": [[*place, loss] for place, loss in cells],
        }
