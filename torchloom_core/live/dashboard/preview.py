"""A preview as pages draw it, built once for all of them."""

from typing import Any

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
