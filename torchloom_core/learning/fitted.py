"""A predictor with what it learned: asked like any other, its probabilities calibrated."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from torchloom_core.errors import ModelError
from torchloom_core.learning.calibration import Calibration
from torchloom_core.learning.card import Card
from torchloom_core.learning.model import Model
from torchloom_core.plugin.api import Hazard, Learner, Predictor
from torchloom_core.plugin.contract import checked_probability
from torchloom_core.plugin.foreign import text_of
from torchloom_core.plugin.needs import PredictorNeed
from torchloom_core.plugin.view import FleetView


class FittedPredictor:
    """Wraps a predictor and its calibration.

    Parameters
    ----------
    predictor : Predictor
        With what it learned already restored.
    every_s : float, optional
        How often to ask it; absent: as often as it says.
    card : Card, optional
        What it is worth; None where nobody measured it.
    """

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
        """What the config may say of the predictor."""
        return self._predictor.Options

    def forecast(self, view: FleetView) -> Hazard:
        """Return the calibrated probabilities, ``(workers,)``.

        Raises
        ------
        PluginError
            If it says none: calibrated, whatever it says would look like one.
        """
        hazard = self._predictor.forecast(view)
        if not isinstance(hazard, Hazard):
            return hazard
        said = checked_probability(hazard, len(view))
        return Hazard(probability=self._calibration.apply(said), why=hazard.why)


def restore(model: Model, cls: type[Any], path: Path) -> Predictor:
    """Return the model's predictor with what it learned.

    Raises
    ------
    ModelError
        If the installed predictor does not take the model's options or parts.
    """
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
            f"{path}: need a model that the installed {model.info.predictor} takes (it was made "
            f"by {model.info.package} {model.info.version}): {reason:.300}"
        ) from error
    return predictor


def load_fitted(
    path: Path, cls: type[Any], *, every_s: float | None = None
) -> tuple[FittedPredictor, Model]:
    """Read a model and return it as a predictor of class ``cls``.

    Raises
    ------
    ModelError
        If it cannot be read, or is another predictor's.
    """
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
