"""Make the arms that are to be tested of what a person asked for."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from torchloom_core.config import Config
from torchloom_core.errors import ConfigError
from torchloom_core.evaluate.arms import INTERVAL_POLICY, Arm
from torchloom_core.naming import nearest

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


def candidates(asked: Asked, config: Config, installed: Mapping[str, type[Any]]) -> list[Arm]:
    """Return the candidate arms.

    Policies are as the config has them, or as they come; one that reads forecasts unless told
    otherwise reads those that were asked for. Without any named, a config file is one arm with
    all that is active in it.

    Raises
    ------
    ConfigError
        If no policy has a name that was asked for.
    """
    tables = tables_of(asked, config)
    named = asked.policies
    if not named and asked.config_path is not None and config.policies:
        path = asked.config_path
        return [_arm(path.stem, f"all of {path.name}", dict(config.policies), tables)]
    return [arm for name in named for arm in _of_policies(name, asked, config, tables, installed)]


def _of_policies(
    name: str,
    asked: Asked,
    config: Config,
    tables: Mapping[str, dict[str, Any]],
    installed: Mapping[str, type[Any]],
) -> Iterator[Arm]:
    """Yield one arm, or one for each predictor where there is a choice."""
    parts = name.split("+")
    for part in parts:
        if part not in installed:
            raise ConfigError(f"--policy {name}: no policy has this name{nearest(part, installed)}")
    given = {part: _acting(config.policies.get(part, {})) for part in parts}
    open_ = [part for part in parts if _default(installed[part]) and _OPTION not in given[part]]
    choices: list[str] = [predictor for predictor, _ in asked.predictors] if open_ else []
    for choice in choices or [""]:
        policies = {
            part: {**given[part], _OPTION: choice} if choice and part in open_ else given[part]
            for part in parts
        }
        read = {
            settings.get(_OPTION, _default(installed[part])) for part, settings in policies.items()
        } - {""}
        predictors = {one: tables.get(one, {}) for one in sorted(read)}
        arm_name = f"{name}({choice})" if len(choices) > 1 else name
        what = " and ".join(parts) + (f", told by {', '.join(predictors)}" if predictors else "")
        yield _arm(arm_name, what, policies, predictors)


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
        policies=policies,
        predictors=predictors,
    )


def tables_of(asked: Asked, config: Config) -> dict[str, dict[str, Any]]:
    """Return the predictors' tables; a model that was asked for takes the options' place."""
    tables = {name: _anchored(table) for name, table in config.predictors.items()}
    for name, model in asked.predictors:
        known = tables.get(name, {})
        if model:
            known = {key: value for key, value in known.items() if key == "every_s"}
            known = _anchored({**known, "model": model})
        tables[name] = known
    return tables


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
