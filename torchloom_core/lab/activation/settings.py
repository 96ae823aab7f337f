"""The config of plugins apart from their own options, for :mod:`.activation`."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torchloom_core.config import faults
from torchloom_core.config.loading import convert
from torchloom_core.config.schema import Config, ModelSwitch
from torchloom_core.floor.errors import ConfigError, ModelError
from torchloom_core.floor.suggest import nearest
from torchloom_core.interface.api import Policy, Predictor
from torchloom_core.interface.contract import MODEL
from torchloom_core.interface.needs import forecasts_read
from torchloom_core.lab.learning.fitted import FittedPredictor, load_fitted
from torchloom_core.lab.learning.model import Model


class Place(NamedTuple):
    """The config file, to name a position in it."""

    source: str
    text: str

    def of(self, *path: str | int) -> str:
        """Return file, line and dotted key."""
        return faults.place(self.source, self.text, path)

    def has(self, *path: str) -> bool:
        """Return whether the file has a table of this name."""
        table: Any = tomllib.loads(self.text)
        for key in path:
            if key not in table:
                return False
            table = table[key]
        return True


def check_predictors(policy: Policy, name: str, config: Config, place: Place) -> None:
    """Raise a ConfigError if a policy reads forecasts of a predictor that is not active."""
    for need in forecasts_read(policy.needs):
        if need.predictor not in config.predictors:
            raise ConfigError(
                f"{place.of('policies', name)}: need predictor {need.predictor!r} under "
                f"[predictors]{nearest(need.predictor, config.predictors)}"
            )


def dry_run_reason(
    policy: Policy, name: str, predictors: Mapping[str, Predictor], config: Config, place: Place
) -> str:
    """Return why a policy has to be in dry run; "" if it may act.

    It may act on forecasts of a useful model, of a model that its option ``accept_unskilled``
    accepts, and of a predictor without a model. ConfigError if a model has a leaky column.
    """
    for need in forecasts_read(policy.needs):
        predictor = predictors.get(need.predictor)
        card = predictor.card if isinstance(predictor, FittedPredictor) else None
        if not need.skilled or card is None or card.verdict.level == "useful":
            continue
        where = place.of("policies", name) if place.has("policies", name) else f"policy {name}"
        model = f"{config.predictors[need.predictor][MODEL]}: {card.verdict.sentence}"
        text = f"{where}: need a useful model to act on{_overrule(policy, name)}, was {model}"
        if card.verdict.level == "refused":
            raise ConfigError(text)
        return text
    return ""


def _overrule(policy: Policy, name: str) -> str:
    """Return how to accept any model, if the policy has an option for that."""
    if "accept_unskilled" not in policy.Options.__struct_fields__:
        return ""
    return (
        f", or accept_unskilled = true under [policies.{name}] in a config file that --config names"
    )


def fitted(
    cls: type[Any], settings: Mapping[str, Any], place: Place, *, may_detect: bool
) -> tuple[Predictor, Model]:
    """Return the predictor with the settings' fitted model, and the model.

    ConfigError if there are other settings than ``model`` and ``every_s``; ModelError if the model
    cannot be read, is another predictor's, or is a detector that is not allowed.
    """
    name = f"predictors.{cls.name}"
    switch = convert(dict(settings), ModelSwitch, place.source, name, place.text)
    predictor, model = load_fitted(Path(switch.model), cls, every_s=switch.every_s)
    if model.info.task == "detect" and not may_detect:
        raise ModelError(
            f"{switch.model}: need a model that was fitted with --task forecast, was detect: it "
            f"detects present incidents, but does not forecast failures"
        )
    return predictor, model
