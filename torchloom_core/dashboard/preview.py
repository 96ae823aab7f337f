"""A preview as pages draw it, made up once for all of them."""

from typing import Any

from torchloom_core.trajectory.preview import Preview
from torchloom_core.wire.preview import Arm

_MOST_POINTS = 300
"""Of a curve, each with the least and the most: as many as a page has dashboard for."""


class PreviewShown:
    """Knows what was made up last, and of what."""

    def __init__(self, preview: Preview) -> None:
        self._preview = preview
        self._version = -1
        self._told: dict[str, Any] = {}

    @property
    def version(self) -> int:
        """Another number whenever there is more to show."""
        return self._preview.version

    def told(self) -> dict[str, Any]:
        """Return what a page is told: who tries what, how far it is, curves, and words."""
        if self._version != self.version:
            self._version, self._told = self.version, self._made()
        return self._told

    def _made(self) -> dict[str, Any]:
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
            "says": preview.judged.says if preview.judged else "",
            "words": list(preview.words()),
            "is_over": preview.end is not None,
            "steps": steps,
            "curves": [
                [getattr(bands[arm].get(step), name, None) for step in steps]
                for arm in arms
                for name in ("least", "mean", "most")
            ],
        }
