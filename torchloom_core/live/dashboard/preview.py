"""The newest preview and loss landscape as pages draw them."""

from itertools import islice
from typing import Any

from torchloom_core.live.trajectory.landscape import Landscape
from torchloom_core.live.trajectory.preview import Preview
from torchloom_core.wire.preview import Arm

_MOST_POINTS = 300
"""Points of a curve, each with the smallest and the largest value."""


class PreviewShown:
    """Caches what was built last."""

    def __init__(self, preview: Preview) -> None:
        self._preview = preview
        self._version = -1
        self._shown: dict[str, Any] = {}

    @property
    def version(self) -> int:
        """Changes whenever there is more to show."""
        return self._preview.version

    def shown(self) -> dict[str, Any]:
        """Return the worker, the progress, the curves and the result."""
        if self._version != self.version:
            self._version, self._shown = self.version, self._build()
        return self._shown

    def _build(self) -> dict[str, Any]:
        preview = self._preview
        arms: tuple[Arm, ...] = ("control", "change")
        bands = {arm: {p.step: p for p in preview.band(arm, _MOST_POINTS)} for arm in arms}
        steps = sorted(bands["control"].keys() | bands["change"].keys())
        return {
            "command": preview.command,
            "worker": preview.worker,
            "at": preview.setup.at if preview.setup else "",
            "of_step": preview.setup.of_step if preview.setup else -1,
            "points": preview.points,
            "of": preview.of,
            "result": preview.judged.result if preview.judged else "",
            "words": list(preview.words()),
            "is_over": preview.end is not None,
            "steps": steps,
            "curves": [
                [getattr(bands[arm].get(step), name, None) for step in steps]
                for arm in arms
                for name in ("least", "mean", "most")
            ],
        }


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
