"""What the config says of plugins, beyond their own options; :mod:`.plugins` asks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torchloom_core.config import faults
from torchloom_core.config.loading import convert
from torchloom_core.config.schema import Config, ModelSwitch
from torchloom_core.errors import ConfigError
from torchloom_core.learning.fitted import load_fitted
from torchloom_core.plugin.api import Policy, Predictor
from torchloom_core.plugin.contract import MODEL
from torchloom_core.suggest import nearest


class Place(NamedTuple):
    """The config file, to name a place in it."""

    source: str
    text: str

    def of(self, *path: str | int) -> str:
        """Return file, line and dotted key."""
        return faults.place(self.source, self.text, path)


def check_predictors(policy: Policy, name: str, config: Config, place: Place) -> None:
    """Refuse a policy that reads forecasts nobody makes."""
    for predictor in getattr(policy, "predictors", ()):
        if predictor not in config.predictors:
            raise ConfigError(
                f"{place.of('policies', name)}: need predictor {predictor!r} under "
                f"[predictors]{nearest(predictor, config.predictors)}"
            )


def check_skill(
    policy: Policy, name: str, predictors: Mapping[str, Predictor], config: Config, place: Place
) -> None:
    """Refuse a policy with ``needs_skill`` where a model's card shows none.

    A predictor without a model has no card, and passes. A policy with the option
    ``accept_unskilled`` can be told to take such a model all the same.
    """
    if not getattr(policy, "needs_skill", False):
        return
    for predictor in getattr(policy, "predictors", ()):
        card = getattr(predictors.get(predictor), "card", None)
        if card is not None and not card.skill:
            # Without its text nobody knows whether a config file has a table of this policy.
            where = place.of("policies", name) if place.text else f"policy {name}"
            raise ConfigError(
                f"{where}: need a predictor with skill{_overrule(policy, name)}, was "
                f"{config.predictors[predictor][MODEL]}: {card.sentence}"
            )


def _overrule(policy: Policy, name: str) -> str:
    """Return how to have a model without skill all the same, where the policy can be told."""
    if "accept_unskilled" not in getattr(type(policy).Options, "__struct_fields__", ()):
        return ""
    return (
        f", or accept_unskilled = true under [policies.{name}] in a config file that --config names"
    )


def fitted(cls: type[Any], settings: Mapping[str, Any], place: Place) -> tuple[Predictor, str]:
    """Return the fitted model that the settings name, and its digest.

    Raises
    ------
    ConfigError
        If they say anything but ``model`` and ``every_s``.
    ModelError
        If the model cannot be read, or is another predictor's.
    """
    name = f"predictors.{cls.name}"
    switch = convert(dict(settings), ModelSwitch, place.source, name, place.text)
    predictor, model = load_fitted(Path(switch.model), cls, every_s=switch.every_s)
    return predictor, model.digest
