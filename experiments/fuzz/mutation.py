"""Messages with something wrong in them: every field in turn, then at random, then the bytes."""

import copy
import csv
import io
import json
import math
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

Path = tuple[str | int, ...]

EVIL: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, -2, 65_536, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1,
    -(2**63), 2**70, -(2**70), 10**400, 0.5, -0.0, 1e308, -1e308, 1e-320, math.nan, math.inf,
    -math.inf, "", " ", "a b", "a.b", "*", ">", "\0", "\n", "a\n", "\x1b[2J", "\ud800", "é",
    "\u202e", "../..", "g0-0", "9" * 30, "a" * 64, "a" * 65, "a" * 257, "a" * 3000, [], {}, [[]],
    {"a": {"b": []}}, b"", b"\xff" * 9, "training", "hello", "lr", 10**18, [None] * 2000,
)  # fmt: skip
_TOML = (
    b"nan", b"-inf", b"9" * 40, b"9" * 5000, b"[" * 3000, b"'\\ud800'", b"{}", b"-1", b"1e400",
    b"1979-05-27", b"[[1]]", b"{a.b=1}", b'"' + b"x" * 5000 + b'"', b"0x" + b"f" * 90, b"true",
    b"''", b"'.'", b"'none.csv'", b"'time'", b"'component'", b"'s'", b"'days'", b"['temp']",
    b"{time='component'}", b"{component='time', kind='time'}", b"{kind=[1]}", b"{x={y=1}}",
)  # fmt: skip
"""What may stand behind a key, but should not."""
_CELLS = (
    "", " ", "nan", "NaT", "inf", "-inf", "1e400", "0", "-1", "9" * 30, "1800", "20260101", "true",
    "2026-01-01", "2026-13-01", "0001-01-01", "9999-12-31", "2262-04-12", "1677-09-21T00:12:43Z",
    "2026-01-02T00:00:00+25:00", "2026-01-01T00:00:00.123456789123Z", "n1", "n1;n1", "r0", "temp",
    '"', '""', "a,b", "a\nb", "a\rb", "\0", "\x1b[2J", "\u202e", "\ufeff", "\u2028", "é",
    "x" * 5000, "'", "\\", "#", "[1]", "{}", "None", "null", "valid", "t_event", "time",
    "component", "id",
)  # fmt: skip
_DEEP = (50, 600, 20_000)
_LONGEST_PATH = 12
_HUGE = 600_000


def fields_of(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the way to every value inside ``value``, not too deep, and to itself."""
    yield path
    if len(path) > _LONGEST_PATH:
        return
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, part in items:
        yield from fields_of(part, (*path, key))


def changed(value: Any, path: Path, to: Any) -> Any:
    """Return ``value`` with ``to`` at ``path``; what lies beside the path is shared."""
    if not path:
        return to
    twin = copy.copy(value)
    twin[path[0]] = changed(value[path[0]], path[1:], to)
    return twin


class Mutator:
    """Makes mutated messages, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def message(self, template: Any, encode: Callable[[Any], bytes]) -> bytes:
        """Return a mutated message; now and then one that is whole."""
        kind = self.random.random()
        if kind < 0.02:
            return encode(template)
        if kind < 0.75:
            return encode(self.structure(template))
        return self.bytes(encode(self.structure(template) if kind > 0.95 else template))

    def file(self, suffix: str, whole: bytes) -> bytes:
        """Return a file of its kind with something in it changed."""
        if not whole or self.random.random() < (0.15 if suffix == ".csv" else 0.4):
            return self.bytes(whole)
        match suffix:
            case ".json":
                return as_json(self.structure(json.loads(whole)))
            case ".jsonl":
                lines = whole.splitlines()
                at = self.random.randrange(len(lines))
                lines[at] = as_json(self.structure(json.loads(lines[at])))
                return b"\n".join(lines) + b"\n"
            case ".toml":
                lines = whole.splitlines()
                at = self.random.randrange(len(lines))
                key = lines[at].partition(b"=")[0] or b"a"
                lines[at] = key + b"= " + self.random.choice(_TOML)
                return b"\n".join(lines)
            case ".csv":
                return self._table(whole)
        return self.bytes(whole)

    def _table(self, whole: bytes) -> bytes:
        """Return a CSV file with cells, columns or rows changed."""
        rows = list(csv.reader(io.StringIO(whole.decode())))
        for _ in range(self.random.choice((1, 1, 1, 2, 5))):
            if not rows or not rows[0]:
                break
            row = self.random.choice(rows)
            column = self.random.randrange(len(rows[0]))
            evil = self.random.choice(_CELLS)
            match self.random.randrange(16):
                case 10:
                    for one in rows[self.random.randrange(2) :]:
                        one[column : column + 1] = [evil]
                case 11:
                    rows[0][column : column + 1] = [evil]
                case 12:
                    row[column:] = self.random.choice(([], row[column:] * 2, [*row, "x"]))
                case 13:
                    for one in rows:
                        del one[column : column + 1]
                case 14:
                    rows[:] = self.random.choice((rows * 2, rows[:1], rows[1:], rows[::-1]))
                case 15:
                    self.random.shuffle(rows)
                case _:
                    row[column : column + 1] = [evil]
        out = io.StringIO()
        quotes = self.random.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
        delimiter = self.random.choice((",",) * 9 + (";",))
        writer = csv.writer(out, quoting=quotes, delimiter=delimiter, lineterminator="\n")
        writer.writerows(rows or [[]])
        text = out.getvalue()
        text = self.random.choice((text,) * 9 + (f"\ufeff{text}", text.replace("\n", "\r\n")))
        return text.encode(errors="surrogatepass")

    def structure(self, template: Any) -> Any:
        """Return the template with one to three fields changed, added, removed or buried."""
        value = template
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            paths = list(fields_of(value))
            path = self.random.choice(paths)
            value = changed(value, path, self._instead(value, path))
            if isinstance(value, dict) and self.random.random() < 0.1:
                value = self._other_keys(value)
        return value

    def bytes(self, data: bytes) -> bytes:
        """Return ``data`` cut, doubled, or with bytes flipped or put in."""
        body = bytearray(data)
        for _ in range(self.random.choice((1, 1, 2, 4, 16))):
            at = self.random.randrange(len(body) + 1)
            match self.random.randrange(6):
                case 0:
                    del body[at:]
                case 1:
                    body[at:at] = self.random.randbytes(self.random.randrange(1, 9))
                case 2:
                    body[at:at] = body[: self.random.randrange(64)]
                case 3:
                    body[at : at + 4] = self.random.choice(
                        (b"\xff" * 4, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\\ud800")
                    )
                case 4:
                    depth = self.random.choice(_DEEP)
                    body[at:at] = self.random.choice((b"[", b'{"a":', b"\x91", b"\x81\xa0")) * depth
                case _:
                    if at < len(body):
                        body[at] = self.random.randrange(256)
        return bytes(body)

    def _instead(self, value: Any, path: Path) -> Any:
        old = value
        for key in path:
            old = old[key]
        kind = self.random.random()
        if kind < 0.7:
            return self.random.choice(EVIL)
        if kind < 0.8 and isinstance(old, int | float) and abs(old) < 2**70:
            return old * self.random.choice((-1, 2, 10**6, 10**12)) + self.random.choice((-1, 1))
        if kind < 0.802:
            return "x" * _HUGE
        if kind < 0.83:
            return _nested(old, self.random.choice(_DEEP[:2]))
        if kind < 0.9 and isinstance(old, list):
            return old * self.random.choice((2, 70, 300))
        if kind < 0.95 and isinstance(old, str):
            return old + self.random.choice(("\n", "\0", ".", " ", "é", "x" * 70))
        return self.random.choice([value, [value], old])

    def _other_keys(self, value: dict[Any, Any]) -> dict[Any, Any]:
        value = dict(value)
        key = self.random.choice(list(value) or ["a"])
        match self.random.randrange(3):
            case 0:
                value.pop(key, None)
            case 1:
                value["of_tomorrow"] = value.get(key)
            case _:
                value[str(self.random.choice(EVIL))[:300]] = value.pop(key, None)
        return value


def _nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def as_json(value: Any) -> bytes:
    """Return ``value`` as JSON, even if JSON cannot represent it."""
    try:
        return json.dumps(value, default=repr, ensure_ascii=False).encode(errors="surrogatepass")
    except (RecursionError, ValueError):
        return b"[" * 5000


def as_msgpack(value: Any) -> bytes:
    """Return ``value`` as msgpack, including forms that no packer writes."""
    try:
        return _packed(value)
    except RecursionError:
        return b"\x91" * 5000


def _packed(value: Any) -> bytes:
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        if -(2**63) <= value < 2**63:
            return struct.pack(">Bq", 0xD3, value)
        return struct.pack(">BQ", 0xCF, min(abs(value), 2**64 - 1))
    if isinstance(value, float):
        return struct.pack(">Bd", 0xCB, value)
    if isinstance(value, str):
        data = value.encode(errors="surrogatepass")
        return struct.pack(">BI", 0xDB, len(data)) + data
    if isinstance(value, bytes):
        return struct.pack(">BI", 0xC6, len(value)) + value
    if isinstance(value, list | tuple):
        return struct.pack(">BI", 0xDD, len(value)) + b"".join(map(_packed, value))
    pairs = b"".join(_packed(key) + _packed(part) for key, part in value.items())
    return struct.pack(">BI", 0xDF, len(value)) + pairs
