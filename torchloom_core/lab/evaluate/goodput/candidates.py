"""Build the candidate arms from the command line and the config."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import ConfigError
from torchloom_core.floor.suggest import nearest
from torchloom_core.lab.activation.activation import without_mode
from torchloom_core.lab.evaluate.arm import MEMBERSHIP_POLICY, Arm
from torchloom_core.lab.evaluate.goodput.arms import INTERVAL_POLICY, names_taken
from torchloom_core.lab.learning.model import SUFFIX

_OPTION = "predictor"
"""The option of a policy that names the predictor it reads."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The policies, predictors and config file that the command line selects.

    Each of ``policies`` is one arm; ``a+b`` is one arm with both. A predictor is its name, and the
    path of a fitted model or "".
    """

    policies: tuple[str, ...] = ()
    predictors: tuple[tuple[str, str], ...] = ()
    config_path: Path | None = None


class Forecaster(msgspec.Struct, frozen=True, kw_only=True):
    """A predictor under test, with its table under ``[predictors]``.

    ``label`` is its name in the report, with the model if several share the name.
    """

    label: str
    name: str
    table: dict[str, Any]


def forecasters(selection: Selection, config: Config) -> list[Forecaster]:
    """Return the selected predictors, by default the config's; a model replaces the options."""
    tables = _tables_of(config)
    if not selection.predictors:
        return [Forecaster(label=name, name=name, table=table) for name, table in tables.items()]
    times = Counter(name for name, _ in selection.predictors)
    found = []
    for name, model in selection.predictors:
        table = tables.get(name, {})
        if model:
            pace = {key: value for key, value in table.items() if key == "every_s"}
            table = _anchored({**pace, "model": model})
        label = f"{name}={model.removesuffix(SUFFIX)}" if model and times[name] > 1 else name
        found.append(Forecaster(label=label, name=name, table=table))
    return found


def candidates(
    selection: Selection, config: Config, installed: Mapping[str, type[Any]]
) -> list[Arm]:
    """Return the candidate arms.

    Policies have their options from the config, or the defaults. A policy that reads forecasts but
    names no predictor reads the selected one. Without selected policies, a config file is one arm
    with everything that is active in it, and at most one predictor can be selected. ConfigError if
    a selected policy is not installed, or the selection is ambiguous.
    """
    for name, settings in config.policies.items():
        if not isinstance(was := settings.get(_OPTION, ""), str):
            raise ConfigError(
                f"policies.{name}.{_OPTION}: need the name of a predictor, was {was!r:.60}"
            )
    chosen = forecasters(selection, config) if selection.predictors else []
    refuse_twice("--policy", selection.policies)
    refuse_twice("--predictor", (one.label for one in chosen))
    tables = _tables_of(config) | {one.name: one.table for one in chosen}
    if not selection.policies and selection.config_path is not None and has_any_policy(config):
        _refuse_taken(f"--config {selection.config_path}", selection.config_path.stem)
        arm = _of_config(selection.config_path, config.policies, chosen, tables, installed)
        roles = {role: own.policies for role, own in config.roles.items() if own.policies}
        return [replace(arm, roles=roles)]
    for name in selection.policies:
        _refuse_taken("--policy", name)
    return [
        arm
        for name in selection.policies
        for arm in _of_policies(name, config, chosen, tables, installed)
    ]


def has_any_policy(config: Config) -> bool:
    """Return whether a config activates a policy, of the run or of a role."""
    return bool(config.policies or any(own.policies for own in config.roles.values()))


def _refuse_taken(option: str, name: str) -> None:
    """Raise ConfigError if a built-in arm has this name."""
    if name in names_taken():
        raise ConfigError(f"{option}: need a name other than the built-in arms', was {name!r}")


def refuse_twice(option: str, names: Iterable[str]) -> None:
    """Raise ConfigError if a name occurs twice, as names identify results in the report."""
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
    """Return one arm with everything in a config file."""
    open_ = _without_predictor(policies, installed)
    if len(chosen) > (1 if open_ else len({one.name for one in chosen})):
        named = " and ".join(one.label for one in chosen)
        raise ConfigError(
            f"--predictor: need a --policy for several predictors, or only one with "
            f"{path.name}, was {named}"
        )
    what = f"all of {path.name}"
    if open_ and chosen:
        policies = _with_predictor(policies, open_, chosen[0])
        what += f", with forecasts of {chosen[0].label}"
    return _arm(path.stem, what, dict(policies), tables)


def _of_policies(
    name: str,
    config: Config,
    chosen: Sequence[Forecaster],
    tables: Mapping[str, dict[str, Any]],
    installed: Mapping[str, type[Any]],
) -> Iterator[Arm]:
    """Yield one arm, or one per selected predictor if the policy can read several."""
    parts = name.split("+")
    for part in parts:
        if part not in installed:
            raise ConfigError(
                f"--policy {name}: no installed policy has this name{nearest(part, installed)}"
            )
    # A policy that is selected by name always acts.
    given = {part: without_mode(config.policies.get(part, {})) for part in parts}
    open_ = _without_predictor(given, installed)
    named = {settings[_OPTION] for settings in given.values() if _OPTION in settings}
    choices = [one for one in chosen if open_ or one.name in named]
    for choice in choices if choices else (None,):
        policies, options, labels = given, dict(tables), dict[str, str]()
        if choice is not None:
            policies = _with_predictor(given, open_, choice)
            options[choice.name], labels[choice.name] = choice.table, choice.label
        read = {
            settings.get(_OPTION, _default(installed[part])) for part, settings in policies.items()
        } - {""}
        predictors = {one: options.get(one, {}) for one in sorted(read)}
        arm_name = f"{name}({choice.label})" if choice and len(choices) > 1 else name
        by = ", ".join(labels.get(one, one) for one in predictors)
        what = " and ".join(parts) + (f", with forecasts of {by}" if by else "")
        yield _arm(arm_name, what, policies, predictors)


def _without_predictor(
    policies: Mapping[str, dict[str, Any]], installed: Mapping[str, type[Any]]
) -> list[str]:
    """Return the policies that read forecasts but whose options name no predictor."""
    return [
        name
        for name, settings in policies.items()
        if name in installed and _default(installed[name]) and _OPTION not in settings
    ]


def _with_predictor(
    policies: Mapping[str, dict[str, Any]], open_: Iterable[str], by: Forecaster
) -> dict[str, dict[str, Any]]:
    """Return the policies with the predictor set in those that are ``open_``."""
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
    """Make the model path absolute, as worker processes may run in another folder."""
    model = table.get("model")
    return {**table, "model": str(Path(model).absolute())} if isinstance(model, str) else table


def _default(cls: type[Any]) -> str:
    """Return the default predictor of a policy, "" if it reads none."""
    fields: Iterable[Any] = msgspec.structs.fields(cls.Options)
    return next((str(field.default) for field in fields if field.name == _OPTION), "")
