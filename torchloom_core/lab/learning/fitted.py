"""A fitted predictor with calibrated probabilities, used like any other predictor."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from torchloom_core.floor.errors import ModelError
from torchloom_core.interface.api import Hazard, Learner, Predictor
from torchloom_core.interface.contract import checked_probability
from torchloom_core.interface.foreign import text_of
from torchloom_core.interface.needs import PredictorNeed
from torchloom_core.interface.view import FleetView
from torchloom_core.lab.learning.calibration import Calibration
from torchloom_core.lab.learning.card import Card
from torchloom_core.lab.learning.model import Model


class FittedPredictor:
    """A predictor, already fitted or restored, with its calibration and model card."""

    def __init__(
        self,
        predictor: Predictor,
        calibration: Calibration | None = None,
        *,
        every_s: float | None = None,
        card: Card | None = None,
    ) -> None:
        self._predictor = self.__wrapped__ = predictor
        self._calibration = calibration or Calibration()
        self.card = card
        self.name = predictor.name
        self.needs: Sequence[PredictorNeed] = predictor.needs
        self.horizon_s = predictor.horizon_s
        self.every_s = predictor.every_s if every_s is None else every_s

    @property
    def Options(self) -> type[msgspec.Struct]:
        """The predictor's options in the config."""
        return self._predictor.Options

    def forecast(self, view: FleetView) -> Hazard:
        """Return calibrated ``(workers,)``; PluginError for a value that is no probability."""
        hazard = self._predictor.forecast(view)
        if not isinstance(hazard, Hazard):
            return hazard
        probability = checked_probability(hazard, len(view))
        return Hazard(probability=self._calibration.apply(probability), why=hazard.why)


def restore(model: Model, cls: type[Any], path: Path) -> Predictor:
    """Return the model's predictor; ModelError if the installed one does not take its parts."""
    try:
        options = msgspec.convert(model.info.options, cls.Options)
        predictor: Predictor = cls(options)
        if isinstance(predictor, Learner):
            predictor.restore(model.parts)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        reason = " ".join(text_of(error).split()) or type(error).__name__
        raise ModelError(
            f"{path}: need a model of the installed {model.info.predictor} (this one is of "
            f"{model.info.package} {model.info.version}; fit it again): {reason:.300}"
        ) from error
    return predictor


def load_fitted(
    path: Path, cls: type[Any], *, every_s: float | None = None
) -> tuple[FittedPredictor, Model]:
    """Return a model and its predictor of class ``cls``; ModelError if it is of another."""
    model = Model.load(path)
    if model.info.predictor != cls.name:
        raise ModelError(f"{path}: need a model of {cls.name}, was one of {model.info.predictor!r}")
    fitted = FittedPredictor(
        restore(model, cls, path),
        model.info.calibration,
        every_s=model.info.every_s if every_s is None else every_s,
        card=model.card,
    )
    return fitted, model
