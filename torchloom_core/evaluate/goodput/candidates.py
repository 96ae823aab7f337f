"""Make the arms that are to be tested of what a person asked for."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from torchloom_core.config.schema import Config
from torchloom_core.errors import ConfigError
from torchloom_core.evaluate.goodput.arms import (
    INTERVAL_POLICY,
    MEMBERSHIP_POLICY,
    Arm,
    names_taken,
)
from torchloom_core.learning.model import SUFFIX
from torchloom_core.suggest import nearest

_OPTION = "predictor"
"""The option by which a policy says whose forecasts it reads."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asked for.

    Attributes
    ----------
    policies : tuple of str
        One arm each; ``a+b`` is one arm with both.
    predictors : tuple of (str, str)
        Name, and the path of a fitted model or "".
    config_path : Path, optional
        The file that the config is from.
    """

    policies: tuple[str, ...] = ()
    predictors: tuple[tuple[str, str], ...] = ()
    config_path: Path | None = None


class Forecaster(msgspec.Struct, frozen=True, kw_only=True):
    """A predictor that is tested.

    Attributes
    ----------
    label : str
        What a report calls it: its name, and its model where there are several of that name.
    table : dict
        As under ``[predictors]``.
    """

    label: str
    name: str
    table: dict[str, Any]


def forecasters(asked: Asked, config: Config) -> list[Forecaster]:
    """Return the predictors that were asked for, or without any those of the config.

    A model that was asked for takes the place of the config's options.
    """
    tables = _tables_of(config)
    if not asked.predictors:
        return [Forecaster(label=name, name=name, table=table) for name, table in tables.items()]
    times = Counter(name for name, _ in asked.predictors)
    found = []
    for name, model in asked.predictors:
        table = tables.get(name, {})
        if model:
            pace = {key: value for key, value in table.items() if key == "every_s"}
            table = _anchored({**pace, "model": model})
        label = f"{name}={model.removesuffix(SUFFIX)}" if model and times[name] > 1 else name
        found.append(Forecaster(label=label, name=name, table=table))
    return found


def candidates(asked: Asked, config: Config, installed: Mapping[str, type[Any]]) -> list[Arm]:
    """Return the candidate arms.

    Policies are as the config has them, or as they come; one that reads forecasts unless told
    otherwise reads those that were asked for. Without any named, a config file is one arm with
    all that is active in it, and what is asked for is one predictor.

    Raises
    ------
    ConfigError
        If no policy has a name that was asked for, or what was asked for is no one arm.
    """
    for name, settings in config.policies.items():
        if not isinstance(was := settings.get(_OPTION, ""), str):
            raise ConfigError(
                f"policies.{name}.{_OPTION}: need the name of a predictor, was {was!r:.60}"
            )
    chosen = forecasters(asked, config) if asked.predictors else []
    refuse_twice("--policy", asked.policies)
    refuse_twice("--predictor", (one.label for one in chosen))
    tables = _tables_of(config) | {one.name: one.table for one in chosen}
    if not asked.policies and asked.config_path is not None and config.policies:
        _refuse_taken(f"--config {asked.config_path}", asked.config_path.stem)
        return [_of_config(asked.config_path, config.policies, chosen, tables, installed)]
    for name in asked.policies:
        _refuse_taken("--policy", name)
    return [
        arm
        for name in asked.policies
        for arm in _of_policies(name, config, chosen, tables, installed)
    ]


def _refuse_taken(option: str, name: str) -> None:
    """Raise ConfigError if a baseline, a bound or an oracle is called so."""
    if name in names_taken():
        raise ConfigError(f"{option}: need a name that no arm of the study has, was {name!r}")


def refuse_twice(option: str, names: Iterable[str]) -> None:
    """Raise ConfigError if a report would call two by one name."""
    for name, times in Counter(names).items():
        if times > 1:
            raise ConfigError(f"{option}: need each name once, was {name!r} {times} times")


def _of_config(
    path: Path,
    policies: Mapping[str, dict[str, Any]],
    chosen: Sequence[Forecaster],
    tables: dict[str, dict[str, Any]],
    installed: Mapping[str, type[Any]],
) -> Arm:
    """Return the one arm of all that is in a config file."""
    open_ = _untold(policies, installed)
    if len(chosen) > (1 if open_ else len({one.name for one in chosen})):
        named = " and ".join(one.label for one in chosen)
        raise ConfigError(
            f"--predictor: need a --policy to compare them with, or one for all of {path.name}, "
            f"was {named}"
        )
    what = f"all of {path.name}"
    if open_ and chosen:
        policies = _told(policies, open_, chosen[0])
        what += f", told by {chosen[0].label}"
    return _arm(path.stem, what, dict(policies), tables)


def _of_policies(
    name: str,
    config: Config,
    chosen: Sequence[Forecaster],
    tables: Mapping[str, dict[str, Any]],
    installed: Mapping[str, type[Any]],
) -> Iterator[Arm]:
    """Yield one arm, or one for each predictor where there is a choice."""
    parts = name.split("+")
    for part in parts:
        if part not in installed:
            raise ConfigError(f"--policy {name}: no policy has this name{nearest(part, installed)}")
    given = {part: _acting(config.policies.get(part, {})) for part in parts}
    open_ = _untold(given, installed)
    told = {settings[_OPTION] for settings in given.values() if _OPTION in settings}
    choices = [one for one in chosen if open_ or one.name in told]
    for choice in choices if choices else (None,):
        policies, known, labels = given, dict(tables), dict[str, str]()
        if choice is not None:
            policies = _told(given, open_, choice)
            known[choice.name], labels[choice.name] = choice.table, choice.label
        read = {
            settings.get(_OPTION, _default(installed[part])) for part, settings in policies.items()
        } - {""}
        predictors = {one: known.get(one, {}) for one in sorted(read)}
        arm_name = f"{name}({choice.label})" if choice and len(choices) > 1 else name
        by = ", ".join(labels.get(one, one) for one in predictors)
        what = " and ".join(parts) + (f", told by {by}" if by else "")
        yield _arm(arm_name, what, policies, predictors)


def _untold(
    policies: Mapping[str, dict[str, Any]], installed: Mapping[str, type[Any]]
) -> list[str]:
    """Return the policies that read forecasts, and are not told whose."""
    return [
        name
        for name, settings in policies.items()
        if name in installed and _default(installed[name]) and _OPTION not in settings
    ]


def _told(
    policies: Mapping[str, dict[str, Any]], open_: Iterable[str], by: Forecaster
) -> dict[str, dict[str, Any]]:
    """Return the policies, those that are ``open_`` told whose forecasts to read."""
    return {**policies, **{name: {**policies[name], _OPTION: by.name} for name in open_}}


def _arm(
    name: str,
    what: str,
    policies: dict[str, dict[str, Any]],
    predictors: dict[str, dict[str, Any]],
) -> Arm:
    return Arm(
        name=name,
        kind="candidate",
        what=what,
        needs_forecast=bool(predictors),
        interval="first" if INTERVAL_POLICY in policies else "base",
        standbys="all" if MEMBERSHIP_POLICY in policies else None,
        policies=policies,
        predictors=predictors,
    )


def _tables_of(config: Config) -> dict[str, dict[str, Any]]:
    return {name: _anchored(table) for name, table in config.predictors.items()}


def _anchored(table: dict[str, Any]) -> dict[str, Any]:
    """Name a model by its whole path: a run may be played by a process in another folder."""
    model = table.get("model")
    return {**table, "model": str(Path(model).absolute())} if isinstance(model, str) else table


def _acting(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy's options; one that is asked for by name acts, whatever its mode."""
    return {key: value for key, value in settings.items() if key != "mode"}


def _default(cls: type[Any]) -> str:
    """Return whose forecasts a policy reads unless it is told otherwise; "" if nobody's."""
    fields: Iterable[Any] = msgspec.structs.fields(cls.Options)
    return next((str(field.default) for field in fields if field.name == _OPTION), "")
