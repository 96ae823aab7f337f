"""Build the plugins that the config names; a broken one is reported in one line."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torchloom_core.config import faults
from torchloom_core.config.loading import convert, switch
from torchloom_core.config.schema import Config, EffectorSwitch, ModelSwitch, PolicySwitch
from torchloom_core.floor.errors import ConfigError, ModelError, PluginError
from torchloom_core.floor.suggest import nearest
from torchloom_core.interface.api import Policy, Predictor
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
from torchloom_core.interface.needs import forecasts_read
from torchloom_core.lab.activation.discovery import PluginInfo
from torchloom_core.lab.learning.fitted import FittedPredictor, load_fitted
from torchloom_core.lab.learning.model import Model
from torchloom_core.live.kernel.plugins.host import ActivePlugins, ActivePolicy
from torchloom_core.wire.decisions import PolicyFailed
from torchloom_core.wire.events import PredictorFailed


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
    for called, name, section, settings in _policies(config):
        own = switch(settings, PolicySwitch, source, f"{section}.{name}", text)
        is_of_role = called != name
        try:
            options = without_mode(settings) if is_of_role else _options(settings)
            policy = builder.build("policy", name, options, section)
        except PluginError as error:
            failed.append(PolicyFailed(policy=called, rule="cannot_start", detail=str(error)))
        else:
            check_predictors(policy, name, config, place, section)
            roles = (called.partition(".")[0],) if is_of_role else own.roles
            policies.append(ActivePolicy(called, policy, own.mode, roles=roles))
    for name, settings in config.predictors.items():
        try:
            predictors[name] = builder.build("predictor", name, settings)
        except PluginError as error:
            failed.append(PredictorFailed(predictor=name, rule="cannot_start", detail=str(error)))
    effectors: list[ActiveEffector] = []
    for name, settings in config.effectors.items() if with_effectors else ():
        try:
            effector = builder.build("effector", name, without_mode(settings))
        except PluginError as error:
            builder.warnings.append(f"{error}; nothing is sent to it")
        else:
            mode = switch(settings, EffectorSwitch, source, f"effectors.{name}", text).mode
            effectors.append(ActiveEffector(name, effector, mode))
    for row, active in enumerate(policies):
        if active.mode == "act":
            reason = dry_run_reason(active.policy, active.name, predictors, config, place)
            if reason:
                policies[row] = replace(active, mode="dry_run", dry_run_reason=reason)
                builder.warnings.append(f"{reason} The policy is in dry run until then.")
    for number, pair in enumerate(config.arbiter.forbidden):
        names = {info.name for info in installed if info.kind in ("policy", None)}
        if pair.policy.rpartition(".")[2] not in names:
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


def without_mode(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plugin's options without its mode."""
    return {key: value for key, value in settings.items() if key != "mode"}


def _options(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in without_mode(settings).items() if key != "roles"}


def _policies(config: Config) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield each policy: how it is called, its name, its section and its settings.

    One of a role is called ``<role>.<name>``.
    """
    for name, settings in config.policies.items():
        yield name, name, "policies", settings
    for role, own in config.roles.items():
        for name, settings in own.policies.items():
            yield f"{role}.{name}", name, f"roles.{role}.policies", settings


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

    def build(self, kind: Kind, name: str, settings: Mapping[str, Any], section: str = "") -> Any:
        """Return the plugin; raises PluginError where it is broken, ConfigError as activate."""
        section = section or SECTIONS[kind]
        matches = [i for i in self._infos if i.name == name and i.kind in (kind, None)]
        info = next((i for i in matches if not i.problem), matches[0] if matches else None)
        if info is None:
            names = {i.name for i in self._infos if i.kind == kind and not i.problem}
            where = self._place.of(*section.split("."), name)
            text = f"{where}: no {kind} has this name{nearest(name, names)}"
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


def check_predictors(
    policy: Policy, name: str, config: Config, place: Place, section: str = "policies"
) -> None:
    """Raise a ConfigError if a policy reads forecasts of a predictor that is not active."""
    for need in forecasts_read(policy.needs):
        if need.predictor not in config.predictors:
            raise ConfigError(
                f"{place.of(*section.split('.'), name)}: need predictor {need.predictor!r} under "
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
