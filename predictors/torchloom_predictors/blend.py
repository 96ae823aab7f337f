"""Learn which workers fail soon, with several predictors at once, and take the mean of them."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np

from torchloom_core.learning import RowLearner, RowOptions, Rows
from torchloom_core.plugin import Floats, ModelError, Registry, hookimpl
from torchloom_predictors.boosting import BoostingPredictor
from torchloom_predictors.forest import ForestPredictor
from torchloom_predictors.logistic import LogisticPredictor

_MEMBERS: Mapping[str, type[RowLearner]] = {
    cls.name: cls for cls in (BoostingPredictor, ForestPredictor, LogisticPredictor)
}
_SURE = 12.0
"""Log odds of a member that is sure altogether, as a forest may be whose trees all agree."""


class BlendPredictor(RowLearner):
    """Judge every worker by the mean of several predictors' log odds.

    The members learn from the same rows with their own defaults. Where each of them errs in its own
    way the mean errs less; where one of them is far better than the rest it is better alone.
    """

    name = "blend"
    variants: ClassVar = ({"seasons_s": [86_400.0, 604_800.0]},)
    trusted: ClassVar = ()

    class Options(RowOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[predictors.blend]``.

        Attributes
        ----------
        metrics : tuple of str
            What is looked at; none: the history of faults only.
        spans_s : tuple of float
            Over how long each metric is summed up, seconds.
        attributes : tuple of str
            Numbers that do not change of a component, such as its size.
        groups : tuple of str
            What components have in common beside their rack, such as their model.
        half_lives_s : tuple of float
            Ages at which a fault counts half, seconds; none: no history of faults.
        seasons_s : tuple of float
            Periods, seconds: where in each a moment is; none: it is not looked at.
        incident_s : float
            Faults on one node closer together than this are one incident, seconds.
        max_healthy : int
            How many moments of workers that did not fail are kept to learn from.
        members : tuple of str
            Whose mean it is, each once: boosting, forest, logistic.
        seed : int
            Of the sample and of the members.
        horizon_s : float
            How far ahead the probability looks, seconds.
        every_s : float
            How often to forecast, seconds.
        """

        members: tuple[Literal["boosting", "forest", "logistic"], ...] = (
            "boosting",
            "forest",
            "logistic",
        )

        def __post_init__(self) -> None:
            """Refuse no member, and one that is named twice."""
            if not self.members or len({*self.members}) < len(self.members):
                named = ", ".join(self.members) or "none"
                raise ValueError(f"members: need one or more, each once, was {named}")

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        shared = {name: getattr(options, name) for name in RowOptions.__struct_fields__}
        self._members: dict[str, RowLearner] = {}
        for name in options.members:
            cls: Any = _MEMBERS[name]
            self._members[name] = cls(cls.Options(**shared))

    @property
    def part(self) -> str:
        """Name of the part that holds the members."""
        return f"{self.name}.msgpack"

    def grow(self, rows: Rows) -> Any:
        """Let each member learn from the rows."""
        return {name: member.grow(rows) for name, member in self._members.items()}

    def grow_again(self, trees: Any, rows: Rows) -> Any:
        """Let each member learn again."""
        return {
            name: member.grow_again(trees[name], rows) for name, member in self._members.items()
        }

    def log_odds(self, trees: Any, features: Floats) -> Floats:
        """Return ``(rows,)``, the mean of the members'."""
        each = [member.log_odds(trees[name], features) for name, member in self._members.items()]
        mean: Floats = np.nan_to_num(each, posinf=_SURE, neginf=-_SURE).mean(axis=0)
        return mean

    def to_bytes(self, trees: Any) -> bytes:
        """Return each member as it is kept, by name."""
        return msgspec.msgpack.encode(
            {name: member.to_bytes(trees[name]) for name, member in self._members.items()}
        )

    def from_bytes(self, data: bytes, columns: int) -> Any:
        """Return the members that were kept, checked; else raise a ModelError."""
        try:
            kept = msgspec.msgpack.decode(data, type=dict[str, bytes])
        except msgspec.MsgspecError as error:
            raise ModelError(f"{self.part}: need the members as msgpack: {error}") from None
        if kept.keys() != self._members.keys():
            raise ModelError(
                f"{self.part}: need {', '.join(self._members)}, was {', '.join(kept) or 'none'}"
            )
        return {
            name: member.from_bytes(kept[name], columns) for name, member in self._members.items()
        }

    def check(self, trees: Any, columns: int) -> None:
        """Refuse nothing: each member is checked as it is restored."""


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the predictor."""
    registry.predictor(BlendPredictor)
