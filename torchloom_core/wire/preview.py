"""A change that is tried out on a standby: what is asked for, and the pieces of the answer.

How they travel is in :mod:`torchloom_core.wire.standby_task`; docs/preview.md says what the
numbers mean.
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
"""The kind of note that brings a piece."""

MOST_CHANGED = 16
"""Knobs that one preview changes at the most."""

MOST_STEPS = 10_000
MOST_REPEATS = 50

FEWEST_PAIRS = 5
"""Fewer would all point one way by chance more often than one time in ten."""

Arm = Literal["control", "change"]
Changed = Annotated[dict[KnobName, KnobValue], msgspec.Meta(max_length=MOST_CHANGED)]
Repeat = Annotated[int, msgspec.Meta(ge=0, lt=MOST_REPEATS)]
Repeats = Annotated[int, msgspec.Meta(ge=0, le=MOST_REPEATS)]
Steps = Annotated[int, msgspec.Meta(ge=0, le=MOST_STEPS)]


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is tried, and for how long.

    Attributes
    ----------
    values : dict
        What the knobs would be; without any, both arms are the run as it is.
    steps : int
        That each arm takes; 0: leave off what is under way.
    repeats : int
        Pairs of arms, each from another place in the data.
    seconds : float
        How long it may take.
    seed : int
        From which the places and what is drawn at random come.

    Raises
    ------
    ValueError
        If all arms together take more steps than one standby task has points.
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
    def leaves_off(self) -> bool:
        """Whether it only ends what is under way."""
        return not self.steps

    @property
    def points(self) -> int:
        """How many steps all arms take."""
        return 2 * self.steps * self.repeats

    def price_s(self, step_s: float | None) -> float:
        """Return what it costs, seconds of one standby, where a step takes so long.

        Examples
        --------
        >>> trial = Trial(steps=50, repeats=5, seconds=60.0)
        >>> trial.price_s(0.02), trial.price_s(None)
        (10.0, 60.0)
        """
        return self.seconds if step_s is None else min(self.points * step_s, self.seconds)


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag_field="part", tag="setup"):
    """What is compared, told once the control has gone alike twice.

    Attributes
    ----------
    before, values : dict
        What the knobs are, and what they would be.
    step_s : float
        How long a step takes on the standby.
    at : str
        The print of the weights at which both arms begin.
    of_step : int
        The step of the run that they are of; -1: the script does not say.
    """

    before: Changed
    values: Changed
    steps: Steps
    repeats: Repeats
    step_s: Number
    at: Print = ""
    of_step: Step = -1


class Curve(msgspec.Struct, frozen=True, kw_only=True, tag_field="part", tag="curve"):
    """Some losses of one arm, from step ``first`` of it on."""

    repeat: Repeat
    arm: Arm
    first: Annotated[int, msgspec.Meta(ge=0, lt=MOST_STEPS)]
    losses: Annotated[tuple[Loss, ...], msgspec.Meta(max_length=MOST_AT_ONCE)]


class Ahead(msgspec.Struct, frozen=True, kw_only=True):
    """Where the loss of both arms would be ``steps`` steps after their beginning.

    Of each the least, the median and the most over the pairs; None: its loss was no number.
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
    """What the pairs that are complete say; a later one takes the place of an earlier.

    Attributes
    ----------
    result : str
        ``better`` or ``worse`` with the change, in so many pairs that chance is unlikely; ``same``:
        no difference was found; ``few``: too few pairs to judge.
    pairs, for_change : int
        That were compared, and in how many of them the loss with the change was lower.
    over : int
        Steps at the end of each arm whose mean loss is compared.
    difference, low, high : float, optional
        Loss with the change less that without: the median over the pairs, and the interval in
        which it lies with probability ``confidence``; None: with the change it was no number.
    alike : bool
        Whether both arms of every pair were the same to the bit.
    diverged : int
        Pairs in which the loss with the change was no number in the end.

    Raises
    ------
    ValueError
        If more pairs point a way than there are, or the interval does not hold the difference.
    """

    result: Literal["better", "worse", "same", "few"] = msgspec.field(name="says")
    pairs: Repeats
    for_change: Repeats
    over: Steps
    difference: Loss
    low: Loss
    high: Loss
    confidence: Number
    alike: bool = False
    diverged: Repeats = 0
    ahead: Ahead | None = None

    def __post_init__(self) -> None:
        """Refuse what no pairs can say."""
        if max(self.for_change, self.diverged) > self.pairs:
            raise ValueError(f"for_change, diverged: need at most the pairs, {self.pairs}")
        in_order = [end for end in (self.low, self.difference, self.high) if end is not None]
        if in_order != sorted(in_order):
            raise ValueError(f"need low <= difference <= high, was {in_order}")


Piece = Setup | Curve | Judgement | End
