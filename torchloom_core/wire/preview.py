"""The preview of a change on a standby: the request, and the pieces of its result.

:mod:`torchloom_core.wire.standby_task` describes their transport, docs/preview.md the numbers.
"""

from typing import Annotated, ClassVar, Literal

import msgspec

from torchloom_core.wire.limits import KnobName, KnobValue, Step
from torchloom_core.wire.standby_task import (
    MOST_AT_ONCE,
    MOST_POINTS,
    Duration,
    End,
    Loss,
    Number,
    Print,
)

PREVIEW = "preview"
"""The kind of note that has a piece."""

MOST_CHANGED = 16
"""Knobs that one preview changes at most."""

MOST_STEPS = 10_000
MOST_REPEATS = 50

FEWEST_PAIRS = 5
"""Fewer pairs would all agree by chance more often than one time in ten."""

Arm = Literal["control", "change"]
Changed = Annotated[dict[KnobName, KnobValue], msgspec.Meta(max_length=MOST_CHANGED)]
Repeat = Annotated[int, msgspec.Meta(ge=0, lt=MOST_REPEATS)]
Repeats = Annotated[int, msgspec.Meta(ge=0, le=MOST_REPEATS)]
Steps = Annotated[int, msgspec.Meta(ge=0, le=MOST_STEPS)]


class PreviewRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The change that is tried, and for how long.

    Attributes
    ----------
    values : dict
        The changed knobs; without any, both arms are the run as it is.
    steps : int
        Steps of each arm; 0: end the present task.
    repeats : int
        Pairs of arms, each at another position in the data.
    seconds : float
        Its time limit.
    seed : int
        The seed of the positions and of all random numbers.

    Raises
    ------
    ValueError
        If all arms together have more steps than one standby task has points.
    """

    note: ClassVar[str] = PREVIEW
    over: ClassVar[int] = 1

    values: Changed = {}
    steps: Steps = 50
    repeats: Annotated[int, msgspec.Meta(ge=1, le=MOST_REPEATS)] = FEWEST_PAIRS
    seconds: Duration = 120.0
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0

    def __post_init__(self) -> None:
        """Refuse more steps than one standby task may take."""
        if self.points > MOST_POINTS:
            most = MOST_POINTS // 2
            raise ValueError(f"steps x repeats: need at most {most}, was {self.points // 2}")

    @property
    def ends_task(self) -> bool:
        """Whether it only ends the present task."""
        return not self.steps

    @property
    def points(self) -> int:
        """How many steps all arms have in total."""
        return 2 * self.steps * self.repeats

    def price_s(self, step_s: float | None) -> float:
        """Return its cost, standby-seconds, for a step time of ``step_s``.

        Examples
        --------
        >>> trial = PreviewRequest(steps=50, repeats=5, seconds=60.0)
        >>> trial.price_s(0.02), trial.price_s(None)
        (10.0, 60.0)
        """
        return self.seconds if step_s is None else min(self.points * step_s, self.seconds)


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag_field="part", tag="setup"):
    """The setup, sent once two runs of the control were the same.

    Attributes
    ----------
    before, values : dict
        The present and the changed values of the knobs.
    step_s : float
        The step time on the standby.
    at : str
        The fingerprint of the weights at which both arms begin.
    of_step : int
        The run's step of these weights; -1: the script does not report it.
    """

    before: Changed
    values: Changed
    steps: Steps
    repeats: Repeats
    step_s: Number
    at: Print = ""
    of_step: Step = -1


class Curve(msgspec.Struct, frozen=True, kw_only=True, tag_field="part", tag="curve"):
    """Some losses of one arm, from its step ``first`` on."""

    repeat: Repeat
    arm: Arm
    first: Annotated[int, msgspec.Meta(ge=0, lt=MOST_STEPS)]
    losses: Annotated[tuple[Loss, ...], msgspec.Meta(max_length=MOST_AT_ONCE)]


class Extrapolation(msgspec.Struct, frozen=True, kw_only=True):
    """The extrapolated loss of both arms, ``steps`` steps after their start.

    For each the minimum, median and maximum over the pairs; None: its loss was NaN or infinite.
    """

    steps: Annotated[int, msgspec.Meta(ge=0, le=2 * MOST_STEPS)]
    control: tuple[Number, Number, Number] | None
    change: tuple[Number, Number, Number] | None

    def __post_init__(self) -> None:
        """Refuse a median that does not lie between the least and the most."""
        for three in (self.control, self.change):
            if three is not None and list(three) != sorted(three):
                raise ValueError(f"need least <= median <= most, was {three}")


class Judgement(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="part", tag="judgement"
):
    """The judgement from the complete pairs; a later one replaces an earlier one.

    Attributes
    ----------
    result : str
        ``better`` or ``worse`` with the change, in so many pairs that chance is unlikely; ``same``:
        no difference was found; ``few``: too few pairs to judge.
    pairs, for_change : int
        The compared pairs, and in how many of them the loss with the change was lower.
    over : int
        Steps at the end of each arm whose mean loss is compared.
    difference, low, high : float, optional
        Loss with the change less that without: the median over the pairs, and the interval in
        which it lies with probability ``confidence``; None: with the change it was NaN or infinite.
    alike : bool
        Whether both arms of every pair were the same to the bit.
    diverged : int
        Pairs in which the loss with the change was NaN or infinite at the end.

    Raises
    ------
    ValueError
        If a count exceeds the pairs, or the difference is outside its interval.
    """

    result: Literal["better", "worse", "same", "few"]
    pairs: Repeats
    for_change: Repeats
    over: Steps
    difference: Loss
    low: Loss
    high: Loss
    confidence: Number
    alike: bool = False
    diverged: Repeats = 0
    ahead: Extrapolation | None = None

    def __post_init__(self) -> None:
        """Refuse counts above the pairs, and a difference outside its interval."""
        if max(self.for_change, self.diverged) > self.pairs:
            raise ValueError(f"for_change, diverged: need at most the pairs, {self.pairs}")
        in_order = [end for end in (self.low, self.difference, self.high) if end is not None]
        if in_order != sorted(in_order):
            raise ValueError(f"need low <= difference <= high, was {in_order}")


Piece = Setup | Curve | Judgement | End
