"""The installed capabilities, found by entry points in the group ``torchloom.capabilities``.

An entry point's name is the ``kind`` of its action, its value the package that defines it.
Messages with an action or an operation are decoded by what is installed; any other is refused by
name.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TypeVar

import msgspec

from torchloom_core.floor.entry_points import entry_points
from torchloom_core.floor.errors import PluginError
from torchloom_core.floor.plain_text import plain_line
from torchloom_core.floor.suggest import nearest
from torchloom_core.wire import operations
from torchloom_core.wire.actions import Action
from torchloom_core.wire.operations import Operation

GROUP = "torchloom.capabilities"

OWN = "torchloom_core.capabilities."
"""The packages of torchLoom's own capabilities begin with it."""

_log = logging.getLogger("torchloom")
_T = TypeVar("_T")


@cache
def installed() -> Mapping[str, str]:
    """Return the package of each capability by the name of its action, sorted by name.

    A name that is taken twice keeps torchLoom's own package, else the first by package name.
    """
    points = [(point.name, point.value) for point in entry_points(GROUP)]
    found: dict[str, str] = {}
    for name, package in sorted(points, key=lambda at: (at[0], not at[1].startswith(OWN), at[1])):
        if found.setdefault(name, package) != package:
            _log.warning("capability %s of %s: %s already has it", name, package, found[name])
    return found


def find_part(name: str, part: str) -> ModuleType | None:
    """Return a module of a capability, such as ``kind``; None if it has none.

    Raises
    ------
    PluginError
        If the capability is not installed, or its module raises.
    """
    package = _package_of(name)
    try:
        spec = find_spec(f"{package}.{part}")
        return None if spec is None else import_module(f"{package}.{part}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the code of anyone's package
        raise PluginError(f"capability {name}: {package}.{part}: {_text_of(error)}") from None


@cache
def action_type(name: str) -> type[Action]:
    """Return the action of this kind.

    Raises
    ------
    PluginError
        If no capability has it, or its package raises or does not define it.
    """
    package = _package_of(name)
    for found in _structs(_load(name, package), Action):
        if found.__struct_config__.tag == name:
            return found
    raise PluginError(f"capability {name}: {package}: need an action of that kind, was none")


@cache
def operation_type(verb: str) -> type[Operation]:
    """Return the operation with this verb, torchLoom's own or a capability's.

    Raises
    ------
    PluginError
        If there is none.
    """
    for found in _structs(operations, Operation):
        if found.__struct_config__.tag == verb:
            return found
    for name, package in installed().items():
        try:
            theirs = list(_structs(_load(name, package), Operation))
        except PluginError as error:
            _log.warning("%s", error)
            continue
        for found in theirs:
            if found.__struct_config__.tag == verb:
                return found
    raise PluginError(f"unknown operation {verb!r}: no installed capability has it")


def decode_open(wanted: type[Any], plain: Any) -> Any:
    """Return the action or operation in plain data: the ``dec_hook`` of msgspec's decoders.

    Raises
    ------
    ValueError
        If no installed capability has it, or a field is wrong.
    """
    kind: type[Action] | type[Operation]
    try:
        if wanted is Action:
            kind = action_type(_tag(plain, "kind"))
        elif wanted is Operation:
            kind = operation_type(_tag(plain, "verb"))
        else:
            raise NotImplementedError(wanted)
    except PluginError as error:
        raise ValueError(str(error)) from None
    return _converted(plain, kind, decode_open)


def _converted(plain: Any, kind: Any, hook: Callable[[Any, Any], Any]) -> Any:
    """Return plain data as an action or operation; ValueError, to which msgspec adds the place."""
    try:
        return msgspec.convert(plain, kind, dec_hook=hook)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    except Exception as error:  # noqa: BLE001 - the code of anyone's package
        raise ValueError(_text_of(error)) from None


class Uninstalled:
    """An action or operation of a record whose package is not installed now; it keeps its fields.

    A Weaver ends what it began, and goes on without the package.
    """

    __slots__ = ()


def _decode_recorded(wanted: Any, plain: Any) -> Any:
    """Return the action or operation in plain data, :class:`Uninstalled` if there is none."""
    field = "kind" if wanted is Action else "verb"
    tag = _tag(plain, field)
    try:
        kind = action_type(tag) if wanted is Action else operation_type(tag)
    except PluginError:
        keys = tuple(key for key in plain if key != field)
        stand_in = _stand_in(wanted, field, tag, keys)
        return stand_in(**{f"field{i}": plain[key] for i, key in enumerate(keys)})
    return _converted(plain, kind, _decode_recorded)


@cache
def _stand_in(base: Any, field: str, tag: str, keys: tuple[str, ...]) -> Any:
    fields = [(f"field{i}", Any, msgspec.field(name=key)) for i, key in enumerate(keys)]
    return msgspec.defstruct(
        "UninstalledOne",
        fields,
        bases=(msgspec.Struct, Uninstalled, base),
        tag_field=field,
        tag=tag,
        frozen=True,
    )


@cache
def record_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a Weaver's own record, which may be of packages that are gone."""
    return msgspec.json.Decoder(kind, dec_hook=_decode_recorded)


def from_json(data: bytes, kind: Any) -> Any:
    """Return the message of this kind in ``data``; raises as ``msgspec.json.decode``."""
    return msgspec.json.decode(data, type=kind, dec_hook=decode_open)


def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder of messages that may have actions and operations."""
    return msgspec.json.Decoder(kind, dec_hook=decode_open)


def _text_of(error: BaseException) -> str:
    """Return an error of anyone's package, whose ``str`` may raise as well, in one line."""
    try:
        return plain_line(repr(error))
    except Exception:  # noqa: BLE001 - the code of anyone's package
        return type(error).__name__


def _package_of(name: str) -> str:
    try:
        return installed()[name]
    except KeyError:
        raise PluginError(f"unknown action {name!r}{nearest(name, installed())}") from None


def _load(name: str, package: str) -> ModuleType:
    try:
        return import_module(package)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the code of anyone's package
        raise PluginError(f"capability {name}: {package}: {_text_of(error)}") from None


def _structs(module: ModuleType, base: type[_T]) -> Iterator[type[_T]]:
    for found in vars(module).values():
        if isinstance(found, type) and issubclass(found, base) and found is not base:
            yield found


def _tag(plain: Any, field: str) -> str:
    tag = plain.get(field) if isinstance(plain, Mapping) else None
    if isinstance(tag, str):
        return tag
    raise ValueError(f"need an object with a text {field!r}")
