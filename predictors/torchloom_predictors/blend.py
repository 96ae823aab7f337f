"""Predict failures with the mean of several predictors."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np

from torchloom_core.lab.learning import RowLearner, RowOptions, Rows
from torchloom_core.plugin import Floats, ModelError, Registry, hookimpl
from torchloom_predictors.boosting import BoostingPredictor
from torchloom_predictors.forest import ForestPredictor
from torchloom_predictors.logistic import LogisticPredictor

_MEMBERS: Mapping[str, type[RowLearner]] = {
    cls.name: cls for cls in (BoostingPredictor, ForestPredictor, LogisticPredictor)
}
_SURE = 12.0
"""Limit of a member's log odds, which are infinite if all trees of a forest agree."""


class BlendPredictor(RowLearner):
    """Average the log odds of several predictors.

    The members learn from the same rows with their own defaults. The mean is better if their errors
    are independent, and worse than the best member if that is far better than the rest.
    """

    name = "blend"
    variants: ClassVar = ({"seasons_s": [86_400.0, 604_800.0]},)
    trusted: ClassVar = ()

    class Options(RowOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[predictors.blend]``, besides those of RowOptions."""

        members: tuple[Literal["boosting", "forest", "logistic"], ...] = (
            "boosting",
            "forest",
            "logistic",
        )
        """The predictors, each once: boosting, forest, logistic."""

        def __post_init__(self) -> None:
            """Refuse an empty or repeated list of members."""
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
        """Name of the part with the members."""
        return f"{self.name}.msgpack"

    def grow(self, rows: Rows) -> Any:
        """Fit each member on the rows."""
        return {name: member.grow(rows) for name, member in self._members.items()}

    def grow_again(self, trees: Any, rows: Rows) -> Any:
        """Fit each member again."""
        return {
            name: member.grow_again(trees[name], rows) for name, member in self._members.items()
        }

    def log_odds(self, trees: Any, features: Floats) -> Floats:
        """Return ``(rows,)`` means of the members' log odds."""
        each = [member.log_odds(trees[name], features) for name, member in self._members.items()]
        mean: Floats = np.nan_to_num(each, posinf=_SURE, neginf=-_SURE).mean(axis=0)
        return mean

    def to_bytes(self, trees: Any) -> bytes:
        """Serialise each member, by name."""
        return msgspec.msgpack.encode(
            {name: member.to_bytes(trees[name]) for name, member in self._members.items()}
        )

    def from_bytes(self, data: bytes, columns: int) -> Any:
        """Return the members that :meth:`to_bytes` serialised, or raise a ModelError."""
        try:
            parts = msgspec.msgpack.decode(data, type=dict[str, bytes])
        except msgspec.MsgspecError as error:
            raise ModelError(f"{self.part}: need the members as msgpack: {error}") from None
        if parts.keys() != self._members.keys():
            raise ModelError(
                f"{self.part}: need {', '.join(self._members)}, was {', '.join(parts) or 'none'}"
            )
        return {
            name: member.from_bytes(parts[name], columns) for name, member in self._members.items()
        }

    def check(self, trees: Any, columns: int) -> None:
        """Do nothing: each member checks itself when it is restored."""


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Register the predictor."""
    registry.predictor(BlendPredictor)
