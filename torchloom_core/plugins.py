"""Find plugins by entry point, check them as they register, and build the active ones.

Entry points are loaded one at a time: a plugin that cannot be imported, breaks its contract or
takes a name that is already taken is set aside with one line, and the others are unaffected.
"""

import dataclasses
import importlib.metadata
import inspect
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import pluggy

from torchloom_core.config import faults
from torchloom_core.config.loading import convert
from torchloom_core.config.schema import Config, PolicySwitch
from torchloom_core.errors import ConfigError, ModelError, PluginError
from torchloom_core.plugin.api import PROJECT, Hooks, Policy, Predictor
from torchloom_core.plugin.contract import (
    MODEL,
    Kind,
    contract_problem,
    misspelt_problem,
    needs_problem,
    pace_problem,
)
from torchloom_core.plugin.foreign import one_line
from torchloom_core.plugin.view import Need
from torchloom_core.plugin_settings import Place, check_predictors, check_skill, fitted
from torchloom_core.suggest import nearest
from torchloom_core.wire.events import PolicyFailed, PredictorFailed

log = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "torchloom"
DAY_S = 86_400.0


@dataclass(frozen=True)
class PluginInfo:
    """One policy or predictor that is installed, or an entry point that does not work.

    ``problem`` is empty for a plugin that can be activated. ``kind`` is None where the module
    could not be loaded, so that nobody knows what it would have brought.
    """

    name: str
    kind: Kind | None
    entry_point: str
    package: str
    version: str
    problem: str = ""
    cls: type[Any] | None = None

    @property
    def options(self) -> list[tuple[str, str, str]]:
        """Name, type and default of every option, as text."""
        if self.cls is None or self.problem:
            return []
        return [
            (option.encode_name, _type_name(option.type), _default_text(option))
            for option in msgspec.structs.fields(self.cls.Options)
        ]


@dataclass(frozen=True)
class ActivePolicy:
    """A policy that the config switched on."""

    name: str
    policy: Policy
    mode: Literal["act", "dry_run", "shadow"] = "act"


@dataclass(frozen=True)
class ActivePlugins:
    """What the config switched on, and what it wanted but cannot have."""

    policies: tuple[ActivePolicy, ...] = ()
    predictors: Mapping[str, Predictor] = field(default_factory=dict)
    failed: tuple[PolicyFailed | PredictorFailed, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def needs(self) -> list[Need]:
        """Every metric and window that some active plugin declared."""
        policies = [need for active in self.policies for need in active.policy.needs]
        return policies + [need for plugin in self.predictors.values() for need in plugin.needs]

    @property
    def fault_memory_s(self) -> float:
        """How long faults must be remembered, seconds: a day, or what a plugin declared."""
        plugins = [*(active.policy for active in self.policies), *self.predictors.values()]
        return max([DAY_S, *(getattr(plugin, "fault_memory_s", 0.0) for plugin in plugins)])


class _Collector:
    """The registry that one plugin module is handed."""

    def __init__(self) -> None:
        self.offers: list[tuple[Kind, Any]] = []

    def policy(self, cls: type[Policy]) -> None:
        self.offers.append(("policy", cls))

    def predictor(self, cls: type[Predictor]) -> None:
        self.offers.append(("predictor", cls))


def discover(
    entry_points: Iterable[importlib.metadata.EntryPoint] | None = None,
) -> list[PluginInfo]:
    """Load every installed plugin and return what each brought, sorted by entry point.

    Of two that share a name the one from the entry point that sorts first keeps it.
    """
    if entry_points is None:
        entry_points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    found: list[PluginInfo] = []
    taken: dict[tuple[Kind, str], str] = {}
    for entry_point in sorted(entry_points, key=lambda e: (e.name, e.value)):
        for info in _load(entry_point):
            key = (info.kind, info.name) if info.kind else None
            if key is None or info.problem:
                found.append(info)
            elif key in taken:
                problem = f"the name is taken by entry point {taken[key]}"
                found.append(dataclasses.replace(info, problem=problem))
            else:
                taken[key] = f"{info.entry_point} ({info.package})"
                found.append(info)
    return found


def _load(entry_point: importlib.metadata.EntryPoint) -> list[PluginInfo]:
    package = entry_point.dist.name if entry_point.dist else "unknown"
    version = entry_point.dist.version if entry_point.dist else ""

    def broken(problem: str) -> list[PluginInfo]:
        return [PluginInfo(entry_point.name, None, entry_point.name, package, version, problem)]

    registrar = pluggy.PluginManager(PROJECT)
    registrar.add_hookspecs(Hooks)
    collector = _Collector()
    try:
        registrar.register(entry_point.load(), name=entry_point.name)
        registrar.check_pending()
        answers = registrar.hook.torchloom_register(registry=collector)
        unawaited = [answer for answer in answers if inspect.iscoroutine(answer)]
        for coroutine in unawaited:
            coroutine.close()
        if unawaited:
            return broken("torchloom_register is async: need a plain function, nothing awaits it")
        if not collector.offers:
            return broken(f"{entry_point.value} registers nothing: need a torchloom_register hook")
        return [
            PluginInfo(
                name=str(getattr(cls, "name", "") or getattr(cls, "__name__", entry_point.name)),
                kind=kind,
                entry_point=entry_point.name,
                package=package,
                version=version,
                problem=contract_problem(kind, cls),
                cls=cls,
            )
            for kind, cls in collector.offers
        ]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - foreign code, which may call sys.exit
        return broken(f"cannot be loaded: {one_line(error)}")


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
        problem = needs_problem(plugin.needs, tick_s) or misspelt_problem(kind, plugin)
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


def _type_name(annotation: Any) -> str:
    return faults.wanted(annotation) or str(annotation).replace("typing.", "")


def _default_text(option: msgspec.structs.FieldInfo) -> str:
    if option.default is not msgspec.NODEFAULT:
        return repr(option.default)
    if option.default_factory is not msgspec.NODEFAULT:
        return repr(option.default_factory())
    return "required"
