"""Find the fault in a table: its key, its line, and what is allowed there.

For configs, and for the JSON of traces and models.
"""

import math
import tomllib
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from torchloom_core.floor.suggest import nearest

Path = tuple[str | int, ...]
"""The path to a value: keys of tables, positions in lists."""

_DEEPEST = 32
_SHOWN_KEYS = 4

_PLAIN = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    NoneType: "nothing",
}
_LIST_OF = {
    str: ' such as ["a", "b"]',
    int: " such as [1, 2]",
    float: " such as [1.5, 2]",
}
"""How a list is written, by the type of its items."""


class Fault(NamedTuple):
    """One broken rule and its place."""

    path: Path
    rule: str


_RENAMED = {"room": "dashboard"}


def find_fault(value: Any, hint: Any) -> Fault | None:
    """Return the innermost fault of ``value`` as a ``hint``, or None.

    msgspec's own message names no key inside a dict; converting part by part finds it.
    """
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        for key, part, part_hint in _parts(value, hint):
            fault = find_fault(part, part_hint)
            if fault:
                return Fault((key, *fault.path), fault.rule)
        return _fault_here(value, hint, str(error))
    return None


def broken_rule(source: str, value: Any, hint: Any, error: msgspec.ValidationError) -> str:
    """Return ``file: a.b[0].c: need <rule>, was <value>`` for an invalid ``value``."""
    fault = find_fault(value, hint) or Fault((), str(error))
    where = place(source, "", fault.path) if fault.path else source
    return f"{where}: {fault.rule}"


def unplain(table: Any) -> Fault | None:
    """Return the first value in ``table`` that a record cannot store, or that is too deep."""
    waiting: list[tuple[Path, Any]] = [((), table)]
    while waiting:
        path, value = waiting.pop()
        if len(path) > _DEEPEST:
            return Fault(path[:_SHOWN_KEYS], f"need at most {_DEEPEST} nested keys, was more")
        if isinstance(value, dict):
            waiting += (((*path, key), part) for key, part in value.items())
        elif isinstance(value, list):
            waiting += (((*path, index), part) for index, part in enumerate(value))
        elif isinstance(value, float) and not math.isfinite(value):
            return Fault(path, f"need a finite number, was {value}")
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            return Fault(path, f"need a number of 63 bits, was one of {value.bit_length()}")
    return None


def place(source: str, text: str, path: Path) -> str:
    """Return ``file:line: a.b[0].c``; the line is that of ``a`` if only ``a`` is in ``text``."""
    dotted = ""
    for key in path:
        dotted += f"[{key}]" if isinstance(key, int) else f".{key}"
    found = (line_of(path[:end], text) for end in range(len(path), 0, -1))
    line = next(filter(None, found), None)
    return f"{source}{f':{line}' if line else ''}: {dotted.lstrip('.') or 'the file'}"


def line_of(path: Path, text: str) -> int | None:
    """Return the 1-based line of the statement in ``text`` that first sets ``path``.

    The shortest prefix of whole lines that is TOML and has the path ends with that statement.
    """
    lines = text.splitlines()
    start = 0
    for end in range(1, len(lines) + 1):
        try:
            table = tomllib.loads("\n".join(lines[:end]) + "\n")
        except (ValueError, RecursionError):
            continue
        if _contains(table, path):
            return start + 1
        start = end
    return None


def _contains(value: Any, path: Path) -> bool:
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def _bare(hint: Any, value: Any = None) -> Any:
    """Return ``hint`` without its constraints; of alternatives the one that ``value`` meant."""
    if get_origin(hint) is Annotated:
        return _bare(get_args(hint)[0], value)
    if get_origin(hint) in (Union, UnionType):
        choices = [choice for choice in get_args(hint) if choice is not NoneType]
        if isinstance(value, dict | list):
            choices = [choice for choice in choices if wanted(choice) == _shown(value)]
        return _bare(choices[0], value) if len(choices) == 1 else hint
    return hint


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _parts(value: Any, hint: Any) -> Iterator[tuple[str | int, Any, Any]]:
    """Yield (key, value, hint) of everything directly inside ``value`` that has a hint."""
    hint = _bare(hint, value)
    if isinstance(value, dict):
        if _is_struct(hint):
            for field in msgspec.structs.fields(hint):
                if field.encode_name in value:
                    yield field.encode_name, value[field.encode_name], field.type
        elif get_origin(hint) is dict:
            for key, part in value.items():
                yield key, part, get_args(hint)[1]
    elif isinstance(value, list) and get_origin(hint) in (tuple, list, set, frozenset):
        for index, part in enumerate(value):
            yield index, part, get_args(hint)[0]


def _fault_here(value: Any, hint: Any, message: str) -> Fault:
    """Return the rule that the value itself breaks; its parts are valid."""
    bare = _bare(hint, value)
    if _is_struct(bare) and isinstance(value, dict):
        fields = msgspec.structs.fields(bare)
        allowed = [field.encode_name for field in fields]
        if bare.__struct_config__.forbid_unknown_fields:
            for key in value:
                if key not in allowed:
                    if _RENAMED.get(key) in allowed:
                        return Fault((key,), f"this key is named {_RENAMED[key]!r} now")
                    return Fault((key,), f"unknown key{nearest(key, allowed)}")
        for field in fields:
            if field.required and field.encode_name not in value:
                return Fault((), f"missing key {field.encode_name!r}")
    need = wanted(bare if isinstance(value, dict | list) else hint)
    if need and need != _shown(value):
        return Fault((), f"need {need}{_example(bare)}, was {_shown(value)}")
    rule = message.partition(" - at `$")[0]
    return Fault((), rule[:1].lower() + rule[1:])


def _example(hint: Any) -> str:
    """Return an example of a list of texts or numbers, as a clause."""
    if get_origin(hint) not in (tuple, list):
        return ""
    return _LIST_OF.get(_bare(get_args(hint)[0]), "")


def wanted(hint: Any) -> str:
    """Return what ``hint`` allows in plain words; empty if only msgspec's message has it."""
    bare = _bare(hint)
    if get_origin(bare) is Literal:
        return "one of " + ", ".join(map(str, get_args(bare)))
    if get_origin(bare) in (Union, UnionType):
        choices = [wanted(choice) for choice in get_args(bare)]
        return " or ".join(choices) if all(choices) else ""
    if get_origin(bare) in (tuple, list):
        return "a list"
    if _is_struct(bare) or get_origin(bare) is dict:
        return "a table"
    return " ".join([_PLAIN[bare], *filter(None, _limits(hint))]) if bare in _PLAIN else ""


def _limits(hint: Any) -> Iterator[str]:
    """Yield each constraint of an annotated number or text."""
    while get_origin(hint) is not Annotated:
        choices = [choice for choice in get_args(hint) if choice is not NoneType]
        if len(choices) != 1:
            return
        hint = choices[0]
    for meta in hint.__metadata__:
        if isinstance(meta, msgspec.Meta):
            bounds = ((">", meta.gt), (">=", meta.ge), ("<", meta.lt), ("<=", meta.le))
            yield " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)
            if meta.pattern is not None:
                plain = meta.pattern.removeprefix(r"\A").removesuffix(r"\Z")
                yield f"matching {plain}"


def _shown(value: Any) -> str:
    """Return ``value`` as TOML writes it, shortened."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    shown = repr(value) if isinstance(value, str | int | float) else str(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
