"""Build the plugins that the config names; what cannot be built is set aside with one line."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from torchloom_core.activation.discovery import PluginInfo
from torchloom_core.activation.settings import Place, check_predictors, check_skill, fitted
from torchloom_core.config.loading import convert
from torchloom_core.config.schema import Config, PolicySwitch
from torchloom_core.errors import ConfigError, ModelError, PluginError
from torchloom_core.kernel.plugins.host import ActivePlugins, ActivePolicy
from torchloom_core.plugin.api import Predictor
from torchloom_core.plugin.contract import MODEL, Kind, needs_problem, pace_problem
from torchloom_core.plugin.foreign import one_line
from torchloom_core.suggest import nearest
from torchloom_core.wire.events import PolicyFailed, PredictorFailed

log = logging.getLogger(__name__)


def activate(
    config: Config, infos: Iterable[PluginInfo], source: str, text: str = ""
) -> ActivePlugins:
    """Build the plugins that the config names.

    A plugin that is broken or whose constructor raises ends in ``failed``.

    Parameters
    ----------
    source, text : str
        The config file's name and what it holds, for errors.

    Raises
    ------
    ConfigError
        If nobody registered a name, an option is wrong, or a policy needs a predictor with skill
        and is given a model without.
    ModelError
        If a fitted model cannot be read.
    """
    known = list(infos)
    place = Place(source, text)
    tick_s = config.weaver.tick_s
    policies: list[ActivePolicy] = []
    predictors: dict[str, Predictor] = {}
    failed: list[PolicyFailed | PredictorFailed] = []
    versions: dict[str, str] = {}
    for name, settings in config.policies.items():
        try:
            options = {key: value for key, value in settings.items() if key != "mode"}
            policy = _build("policy", name, options, known, place, versions, tick_s)
        except PluginError as error:
            failed.append(PolicyFailed(policy=name, rule="cannot_start", detail=str(error)))
        else:
            mode = convert(
                {k: settings[k] for k in ("mode",) if k in settings},
                PolicySwitch,
                source,
                f"policies.{name}",
                text,
            )
            check_predictors(policy, name, config, place)
            policies.append(ActivePolicy(name, policy, mode.mode))
    for name, settings in config.predictors.items():
        try:
            predictors[name] = _build("predictor", name, settings, known, place, versions, tick_s)
        except PluginError as error:
            failed.append(PredictorFailed(predictor=name, rule="cannot_start", detail=str(error)))
    for active in policies:
        check_skill(active.policy, active.name, predictors, config, place)
    for number, pair in enumerate(config.arbiter.forbidden):
        names = {info.name for info in known if info.kind in ("policy", None)}
        if pair.policy not in names:
            at = place.of("arbiter", "forbidden", number, "policy")
            raise ConfigError(
                f"{at}: no policy is called {pair.policy!r}{nearest(pair.policy, names)}"
            )
    for failure in failed:
        log.warning("plugin quarantined: %s", failure.detail)
    return ActivePlugins(tuple(policies), predictors, tuple(failed), versions)


def _build(
    kind: Kind,
    name: str,
    settings: Mapping[str, Any],
    infos: list[PluginInfo],
    place: Place,
    versions: dict[str, str],
    tick_s: float,
) -> Any:
    section = "policies" if kind == "policy" else "predictors"
    matches = [i for i in infos if i.name == name and i.kind in (kind, None)]
    info = next((i for i in matches if not i.problem), matches[0] if matches else None)
    if info is None:
        names = {i.name for i in infos if i.kind == kind and not i.problem}
        text = f"{place.of(section, name)}: no {kind} has this name{nearest(name, names)}"
        broken = [i.entry_point for i in infos if i.kind is None]
        if broken:
            text = f"{text}; could not be loaded: {', '.join(broken)}"
        raise ConfigError(text)
    if info.problem or info.cls is None:
        raise PluginError(f"{kind} {name} (entry point {info.entry_point}): {info.problem}")
    version = f"{info.package} {info.version}"
    try:
        if kind == "predictor" and MODEL in settings:
            plugin, digest = fitted(info.cls, settings, place)
            version = f"{version}, model {digest[:12]}"
        else:
            options = convert(
                dict(settings), info.cls.Options, place.source, f"{section}.{name}", place.text
            )
            plugin = info.cls(options)
        problem = needs_problem(kind, plugin.needs, tick_s)
        if kind == "predictor":
            problem = problem or pace_problem(plugin)
    except (ConfigError, ModelError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PluginError(f"{kind} {name}: cannot be built: {one_line(error)}") from error
    if problem:
        raise PluginError(f"{kind} {name}: {problem}")
    versions[name] = version
    return plugin
