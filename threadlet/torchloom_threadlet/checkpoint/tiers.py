"""The tiers of a run's checkpoints: where each saves, how often, and how old its newest is."""

import time
from collections.abc import Iterable

from torchloom_core.wire.checkpoint_tiers import TIERS
from torchloom_threadlet.checkpoint.writer.orders import TierPlace


class Tier:
    """One tier of a rank; all times are monotonic seconds.

    Attributes
    ----------
    place : TierPlace
        Where it saves.
    every_s : float
        Seconds between two saves; may be changed at any time.
    saved_s : float
        When the state was copied that is the newest here.
    stored : int or None
        The step of the last save that is stored here.
    felt_s : float or None
        What a save costs the run, seconds; None until one was measured.
    """

    def __init__(self, place: TierPlace, every_s: float) -> None:
        self.place = place
        self.every_s = every_s
        self.saved_s = self._tried_s = time.monotonic()
        self.felt_s: float | None = None
        self.step: int | None = None
        self.stored: int | None = None
        self._copied_s: dict[int, float] = {}

    @property
    def name(self) -> str:
        """The tier's name."""
        return self.place.name

    @property
    def is_saving(self) -> bool:
        """Whether a save is under way."""
        return bool(self._copied_s)

    def is_due(self, now_s: float) -> bool:
        """Return whether to save here, and the last save is over."""
        return now_s - self._tried_s >= self.every_s and not self.is_saving

    def begin(self, step: int, now_s: float) -> None:
        """Note that the state at a step is copied for this tier."""
        self.step, self._tried_s = step, now_s
        self._copied_s[step] = now_s

    def try_later(self, now_s: float) -> None:
        """Note that a save was due, and could not begin."""
        self._tried_s = now_s

    def end(self, step: int, *, saved: bool) -> None:
        """Note that the state of a step is stored, or will not be."""
        copied_s = self._copied_s.get(step, 0.0)
        self._copied_s = {s: at for s, at in self._copied_s.items() if s != step}
        if saved:
            self.stored = step
            self.saved_s = max(self.saved_s, copied_s)


def measurements(tiers: Iterable[Tier]) -> dict[str, float]:
    """Return the metrics of the tiers, the least durable first.

    What a failure loses that spares a tier and those after it, seconds; and what a save costs.
    """
    now_s, found = time.monotonic(), {}
    saved_s = 0.0
    for tier in reversed(list(tiers)):
        saved_s = max(saved_s, tier.saved_s)
        found[TIERS[tier.name].unsaved] = now_s - saved_s
        if tier.felt_s is not None:
            found[TIERS[tier.name].felt] = tier.felt_s
    return found
