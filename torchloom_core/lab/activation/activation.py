"""Build the plugins that the config names; a broken one is reported in one line."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torchloom_core.config.loading import convert, switch
from torchloom_core.config.schema import Config, EffectorSwitch, PolicySwitch
from torchloom_core.floor.errors import ConfigError, ModelError, PluginError
from torchloom_core.floor.suggest import nearest
from torchloom_core.interface.api import Predictor
from torchloom_core.interface.contract import (
    MODEL,
    SECTIONS,
    Kind,
    misplaced_problem,
    needs_problem,
    pace_problem,
    subscriptions_problem,
)
from torchloom_core.interface.effector import ActiveEffector
from torchloom_core.interface.foreign import one_line
from torchloom_core.lab.activation.discovery import PluginInfo
from torchloom_core.lab.activation.settings import Place, check_predictors, dry_run_reason, fitted
from torchloom_core.live.kernel.plugins.host import ActivePlugins, ActivePolicy
from torchloom_core.wire.decisions import PolicyFailed
from torchloom_core.wire.events import PredictorFailed


def activate(
    config: Config,
    infos: Iterable[PluginInfo],
    source: str,
    text: str = "",
    *,
    may_detect: bool = False,
    with_effectors: bool = False,
) -> ActivePlugins:
    """Build the plugins that the config, file ``source`` with ``text``, names.

    A broken plugin, or one whose constructor raises, is listed in ``failed``. A policy that would
    act on a fitted model that is not useful is put into dry run, with a warning.

    A model may detect present incidents only for scoring, with ``may_detect``: a policy takes the
    answers of all models for forecasts. Effectors are built only for a Weaver: nothing else may act
    outside.

    Raises
    ------
    ConfigError
        If a name is not registered, an option is wrong, or a policy would act on a model with a
        leaky column.
    ModelError
        If a fitted model cannot be read, or is a detector and ``may_detect`` is false.
    """
    installed = list(infos)
    place = Place(source, text)
    builder = _Builder(installed, place, config.weaver.tick_s, may_detect=may_detect)
    policies: list[ActivePolicy] = []
    predictors: dict[str, Predictor] = {}
    failed: list[PolicyFailed | PredictorFailed] = []
    for name, settings in config.policies.items():
        try:
            policy = builder.build("policy", name, _without_mode(settings))
        except PluginError as error:
            failed.append(PolicyFailed(policy=name, rule="cannot_start", detail=str(error)))
        else:
            mode = switch(settings, PolicySwitch, source, f"policies.{name}", text).mode
            check_predictors(policy, name, config, place)
            policies.append(ActivePolicy(name, policy, mode))
    for name, settings in config.predictors.items():
        try:
            predictors[name] = builder.build("predictor", name, settings)
        except PluginError as error:
            failed.append(PredictorFailed(predictor=name, rule="cannot_start", detail=str(error)))
    effectors: list[ActiveEffector] = []
    for name, settings in config.effectors.items() if with_effectors else ():
        try:
            effector = builder.build("effector", name, _without_mode(settings))
        except PluginError as error:
            builder.warnings.append(f"{error}; nothing is sent to it")
        else:
            own = switch(settings, EffectorSwitch, source, f"effectors.{name}", text)
            effectors.append(ActiveEffector(name, effector, own.mode))
    for row, active in enumerate(policies):
        if active.mode == "act":
            reason = dry_run_reason(active.policy, active.name, predictors, config, place)
            if reason:
                policies[row] = replace(active, mode="dry_run", dry_run_reason=reason)
                builder.warnings.append(f"{reason} The policy is in dry run until then.")
    for number, pair in enumerate(config.arbiter.forbidden):
        names = {info.name for info in installed if info.kind in ("policy", None)}
        if pair.policy not in names:
            at = place.of("arbiter", "forbidden", number, "policy")
            raise ConfigError(
                f"{at}: no policy is called {pair.policy!r}{nearest(pair.policy, names)}"
            )
    return ActivePlugins(
        tuple(policies),
        predictors,
        tuple(failed),
        builder.versions,
        tuple(builder.warnings),
        tuple(effectors),
    )


def _without_mode(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != "mode"}


class _Builder:
    """Builds plugins one by one, and collects their versions and warnings."""

    def __init__(
        self, infos: list[PluginInfo], place: Place, tick_s: float, *, may_detect: bool
    ) -> None:
        self._infos = infos
        self._place = place
        self._tick_s = tick_s
        self._may_detect = may_detect
        self.versions: dict[str, str] = {}
        self.warnings: list[str] = []

    def build(self, kind: Kind, name: str, settings: Mapping[str, Any]) -> Any:
        """Return the plugin; raises PluginError where it is broken, ConfigError as activate."""
        section = SECTIONS[kind]
        matches = [i for i in self._infos if i.name == name and i.kind in (kind, None)]
        info = next((i for i in matches if not i.problem), matches[0] if matches else None)
        if info is None:
            names = {i.name for i in self._infos if i.kind == kind and not i.problem}
            text = f"{self._place.of(section, name)}: no {kind} has this name{nearest(name, names)}"
            broken = [i.entry_point for i in self._infos if i.kind is None]
            if broken:
                text = f"{text}; could not be loaded: {', '.join(broken)}"
            raise ConfigError(text)
        if info.problem or info.cls is None:
            raise PluginError(f"{kind} {name} (entry point {info.entry_point}): {info.problem}")
        self.warnings += [
            f"{kind} {name}: the one of {info.package} ({info.entry_point}) is used, "
            f"{other.package} ({other.entry_point}) has one with the same name"
            for other in matches
            if other is not info and other.kind == kind
        ]
        version = f"{info.package} {info.version}"
        try:
            if kind == "predictor" and MODEL in settings:
                plugin, model = fitted(info.cls, settings, self._place, may_detect=self._may_detect)
                version = f"{version}, model {model.digest[:12]}"
                if model.info.tick_s != self._tick_s:
                    self.warnings.append(
                        f"predictor {name}: its model was fitted with one sample every "
                        f"{model.info.tick_s:g} s, but weaver.tick_s is {self._tick_s:g} s"
                    )
            else:
                options = convert(
                    dict(settings),
                    info.cls.Options,
                    self._place.source,
                    f"{section}.{name}",
                    self._place.text,
                )
                plugin = info.cls(options)
            if kind == "effector":
                problem = subscriptions_problem(plugin)
            else:
                problem = misplaced_problem(kind, plugin) or needs_problem(
                    kind, getattr(plugin, "needs", None), self._tick_s
                )
            if kind == "predictor":
                problem = problem or pace_problem(plugin)
        except (ConfigError, ModelError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise PluginError(f"{kind} {name}: cannot be built: {one_line(error)}") from error
        if problem:
            raise PluginError(f"{kind} {name}: {problem}")
        self.versions[name] = version
        return plugin
