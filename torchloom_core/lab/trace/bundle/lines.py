"""Encode and decode rows of a trace bundle as lines of JSON; ``extra`` has unknown columns."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from torchloom_core.floor.errors import TraceError
from torchloom_core.floor.files import open_regular
from torchloom_core.interface.foreign import shown
from torchloom_core.lab.trace.bundle.schema import ROW_OF, Row
from torchloom_core.wire.codec import UNREADABLE

_Row = TypeVar("_Row", bound=Row)

_EXTRA = "extra"
_COLUMNS = {kind: frozenset(kind.__struct_fields__) - {_EXTRA} for kind in ROW_OF.values()}
_TEXTS = {
    kind: frozenset(name for name, hint in get_type_hints(kind).items() if hint is str)
    for kind in ROW_OF.values()
}
_object_decoder = msgspec.json.Decoder(dict[str, Any])

_MISSING = re.compile(r"missing required field `(\w+)`")
_OF_TYPE = re.compile(r"Expected `(.+?)`( [<>]= -?\d+)?.* - at `\$\.(\w+)(?:\[(\d+)\])?`")
_OF_CHOICE = re.compile(r"Invalid enum value .* - at `\$\.(\w+)`")


def encode_row(row: Row) -> bytes:
    """Return the row as one line of JSON; TraceError if an extra column cannot stand beside it."""
    columns = msgspec.to_builtins(row, builtin_types=())
    extra = columns.pop(_EXTRA, {})
    if taken := sorted(extra.keys() & _COLUMNS[type(row)]):
        raise TraceError(f"{_name(row)}: rename the extra column {taken[0]!r}: the schema has it")
    try:
        return msgspec.json.encode({**columns, **extra}) + b"\n"
    except (TypeError, ValueError) as error:
        raise TraceError(f"{_name(row)}: need extra columns that are JSON: {error}") from None


def decode_row(line: bytes, kind: type[_Row]) -> _Row:
    """Return the row in one line of JSON; TraceError, without file and line, as in convert_row."""
    try:
        columns = _object_decoder.decode(line)
    except UNREADABLE as error:
        raise TraceError(f"need a JSON object, was {_short(line)} ({error})") from None
    return convert_row(columns, kind)


def convert_row(columns: Mapping[str, Any], kind: type[_Row], *, from_text: bool = False) -> _Row:
    """Return the row in a mapping; columns unknown to the schema become its ``extra``.

    ``from_text`` is whether numbers and truth values may be written as text, as in a CSV file, and
    names as whole numbers, as in a Parquet file. TraceError if it is not such a row: the rule and
    the value, without file and line.
    """
    known = _COLUMNS[kind]
    row = {name: value for name, value in columns.items() if name in known}
    if from_text:
        row |= {
            name: str(row[name]) for name in _TEXTS[kind] & row.keys() if type(row[name]) is int
        }
    row[_EXTRA] = {name: value for name, value in columns.items() if name not in known}
    try:
        return msgspec.convert(row, kind, strict=not from_text)
    except msgspec.ValidationError as error:
        raise TraceError(_rule(str(error), columns, kind)) from None


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with numbers; TraceError if the file is unreadable."""
    try:
        with open_regular(path) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None


def read_rows(path: Path, kind: type[_Row]) -> tuple[_Row, ...]:
    """Return all rows of a file; TraceError, with file and line, at the first that is none."""
    rows = []
    for number, line in numbered_lines(path):
        try:
            rows.append(decode_row(line, kind))
        except TraceError as error:
            raise TraceError(f"{path}:{number}: {error}") from None
    return tuple(rows)


def _name(row: Row) -> str:
    return f"{type(row).__name__.lower()} {getattr(row, 'id', getattr(row, 'component', ''))}"


def _rule(error: str, columns: Mapping[str, Any], kind: type[msgspec.Struct]) -> str:
    if found := _MISSING.search(error):
        return f"need a column {found[1]!r}, was none"
    if found := _OF_CHOICE.search(error):
        choices = ", ".join(get_args(get_type_hints(kind)[found[1]]))
        return f"need {found[1]} one of {choices}, was {shown(columns[found[1]])}"
    if found := _OF_TYPE.search(error):
        type_of, bound, column, index = found.groups("")
        was = columns[column][int(index)] if index else columns[column]
        part = f"{column}[{index}]" if index else column
        return f"need {part} of type {type_of}{bound}, was {shown(was)}"
    return f"need a {kind.__name__.lower()}: {error}"


def _short(line: bytes) -> str:
    text = line.strip().decode(errors="replace")
    return repr(text if len(text) <= 40 else text[:37] + "...")
