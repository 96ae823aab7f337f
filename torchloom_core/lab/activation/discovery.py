"""Find plugins by entry point, and check their contracts.

Entry points are loaded one at a time: a plugin that cannot be imported, breaks its contract or has
a name that is already used is reported in one line, and does not affect the others.
"""

import dataclasses
import importlib.metadata
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import pluggy

from torchloom_core.config import faults
from torchloom_core.floor.entry_points import entry_points as installed_entry_points
from torchloom_core.interface.api import PROJECT, Hooks, Policy, Predictor
from torchloom_core.interface.contract import (
    Kind,
    contract_problem,
)
from torchloom_core.interface.effector import Effector
from torchloom_core.interface.foreign import one_line

ENTRY_POINT_GROUP = "torchloom"


@dataclass(frozen=True)
class PluginInfo:
    """One installed plugin, or an entry point that does not work.

    ``problem`` is empty for a plugin that can be activated. ``kind`` is None if the module could
    not be loaded, so that its plugins are unknown.
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


class _Collector:
    """The registry for one plugin module."""

    def __init__(self) -> None:
        self.registered: list[tuple[Kind, Any]] = []

    def policy(self, cls: type[Policy]) -> None:
        self.registered.append(("policy", cls))

    def predictor(self, cls: type[Predictor]) -> None:
        self.registered.append(("predictor", cls))

    def effector(self, cls: type[Effector]) -> None:
        self.registered.append(("effector", cls))


def discover(
    entry_points: Iterable[importlib.metadata.EntryPoint] | None = None,
) -> list[PluginInfo]:
    """Load every installed plugin; return all that it registers, sorted by entry point.

    Of two with the same name torchLoom's own is used, or else that of the first entry point.
    """
    if entry_points is None:
        entry_points = installed_entry_points(ENTRY_POINT_GROUP)
    found: list[PluginInfo] = []
    taken: dict[tuple[Kind, str], str] = {}
    for entry_point in sorted(entry_points, key=_precedence):
        for info in _load(entry_point):
            key = (info.kind, info.name) if info.kind else None
            if key is None or info.problem:
                found.append(info)
            elif key in taken:
                problem = f"the name is already used by entry point {taken[key]}"
                found.append(dataclasses.replace(info, problem=problem))
            else:
                taken[key] = f"{info.entry_point} ({info.package})"
                found.append(info)
    return found


@lru_cache(maxsize=1)
def installed() -> tuple[PluginInfo, ...]:
    """Load the installed plugins, once per process."""
    return tuple(discover())


def installed_policies() -> dict[str, type[Any]]:
    """Return the installed policies that loaded, by name."""
    found = by_name(installed(), "policy")
    return {name: info.cls for name, info in found.items() if info.cls}


def by_name(infos: Iterable[PluginInfo], kind: Kind) -> dict[str, PluginInfo]:
    """Return the plugins of a kind by name; of several with one name, the one that is used."""
    found: dict[str, PluginInfo] = {}
    for info in infos:
        if info.kind == kind and (info.name not in found or found[info.name].problem):
            found[info.name] = info
    return found


def _precedence(entry_point: importlib.metadata.EntryPoint) -> tuple[bool, str, str]:
    package, _ = _origin(entry_point.dist)
    return package != PROJECT, entry_point.name, entry_point.value


@lru_cache(maxsize=64)
def _origin(dist: importlib.metadata.Distribution | None) -> tuple[str, str]:
    """Return name and version of a package; cached, since its metadata is read from disk."""
    if dist is None:
        return "unknown", ""
    metadata = dist.metadata
    return metadata["Name"], metadata["Version"]


def _load(entry_point: importlib.metadata.EntryPoint) -> list[PluginInfo]:
    package, version = _origin(entry_point.dist)

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
        if not collector.registered:
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
            for kind, cls in collector.registered
        ]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - foreign code, which may call sys.exit
        return broken(f"cannot be loaded: {one_line(error)}")


def _type_name(annotation: Any) -> str:
    return faults.wanted(annotation) or str(annotation).replace("typing.", "")


def _default_text(option: msgspec.structs.FieldInfo) -> str:
    if option.default is not msgspec.NODEFAULT:
        return repr(option.default)
    if option.default_factory is not msgspec.NODEFAULT:
        return repr(option.default_factory())
    return "required"
