"""Make a user script's input fit to be sent: cut, rename or leave out, and warn once.

Nothing here raises: a loss that is no number or a name with a space must not end a trainer.
"""

import hashlib
import logging
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from torchloom_core.floor.plain_text import plain_line
from torchloom_core.wire.codec import MAX_MESSAGE_BYTES, encode
from torchloom_core.wire.limits import (
    FIELD_NAME,
    MAX_COUNT,
    MAX_FIELDS,
    MAX_LONG_TEXT,
    MAX_METRIC_NAME,
    MAX_METRICS,
    MAX_NAME,
    MAX_ORDER,
    MAX_SHORT_TEXT,
    MAX_TEXT,
    METRIC_NAME,
    KnobValue,
)
from torchloom_core.wire.messages import FieldValue, KnobSpec, Note
from torchloom_core.wire.subjects import token
from torchloom_threadlet.capability import OperationError

_MOST_WARNINGS = 1000
_MOST_CACHED_NAMES = 10_000
_HASH_CHARS = 8
_LONGEST_NAME = 2000
_is_field = re.compile(FIELD_NAME).search
_is_metric = re.compile(METRIC_NAME).search
_not_metric = re.compile(r"[^A-Za-z0-9_:.-]")
_not_field = re.compile(r"[^A-Za-z0-9_.:-]")

_logger = logging.getLogger(__name__)
_warned: set[str] = set()


def warn_once(subject: str, text: str) -> None:
    """Log a warning about input that was changed or left out; once per subject."""
    if subject not in _warned and len(_warned) < _MOST_WARNINGS:
        _warned.add(subject)
        _logger.warning("%s", plain_line(f"{subject}: {text}"))


def text(value: Any, most: int) -> str:
    """Return ``value`` as text that can be encoded, of at most ``most`` characters."""
    try:
        printed = str(value)[:most]
    except Exception:  # noqa: BLE001 - an object of the user's
        return f"<{type(value).__name__} without a text>"
    return printed.encode(errors="backslashreplace").decode()[:most]


def error_line(error: BaseException) -> str:
    """Return an exception as one line for an ack."""
    kind = "" if isinstance(error, OperationError) else f"{type(error).__name__}: "
    return text(f"{kind}{text(error, MAX_TEXT)}", MAX_TEXT)


def name(value: Any, what: str, most: int = MAX_NAME) -> str:
    """Return ``value``, which is not empty, as a token of at most ``most`` characters."""
    raw = text(value, _LONGEST_NAME)
    clean = _cut(token(raw), raw, most)
    if len(raw) > most:
        warn_once(what, f"need at most {most} characters, was {raw!r}; it is sent as {clean}")
    return clean


def _cut(clean: str, raw: str, most: int) -> str:
    """Shorten a name; a hash keeps names with the same beginning distinct."""
    if len(clean) <= most:
        return clean
    digest = hashlib.sha256(raw.encode()).hexdigest()[:_HASH_CHARS]
    return f"{clean[: most - _HASH_CHARS - 1]}-{digest}"


def whole(value: Any) -> int:
    """Return a step as an int, -1 if it is not a possible step."""
    try:
        number = int(value)
    except Exception:  # noqa: BLE001 - user input of any kind: a step must not raise
        return -1
    if not -1 <= number <= MAX_COUNT:
        warn_once("step", f"need a number from -1 to 2**53, was one of {number.bit_length()} bits")
        return -1
    return number


def knob_value(spec: KnobSpec, value: Any) -> KnobValue | None:
    """Return a knob's value as a message can contain it, None if none can."""
    plain = _plain(value)
    most = MAX_ORDER if spec.kind == "order" else MAX_SHORT_TEXT
    if isinstance(plain, str) and len(plain) > most:
        plain = None
    if plain is None:
        warn_once(
            f"knob {spec.name}",
            "need true or false, a finite number, or a text of at most "
            f"{most} characters, was {text(value, 80)}",
        )
    return plain


def fields(raw: Mapping[str, Any]) -> dict[str, FieldValue]:
    """Return the fields of a note with names and values that a message can contain."""
    if len(raw) > MAX_FIELDS:
        warn_once("note", f"need at most {MAX_FIELDS} fields, were {len(raw)}")
    clean: dict[str, FieldValue] = {}
    for key, value in list(raw.items())[:MAX_FIELDS]:
        plain = None if value is None else _plain(value)
        if plain is None and value is not None:
            plain = text(value, MAX_LONG_TEXT)
        clean[field_name(key)] = plain[:MAX_LONG_TEXT] if isinstance(plain, str) else plain
    return clean


def field_name(value: Any) -> str:
    """Return the name of a field or a kind of note, with invalid characters replaced."""
    raw = text(value, MAX_NAME)
    return raw if _is_field(raw) else _not_field.sub("_", raw) or "_"


def fitting(note: Note) -> Note | None:
    """Return ``note`` cut to the broker's limit, None if that is impossible."""
    for _ in range(MAX_FIELDS):
        size = len(encode(note))
        if size <= MAX_MESSAGE_BYTES:
            return note
        longest = max(note.fields, key=lambda key: len(str(note.fields[key])), default="")
        value = str(note.fields.get(longest, ""))
        note = replace(note, fields={**note.fields, longest: value[: len(value) // 2]})
    return None


class MetricNames:
    """Metric names as a message can contain them, cached by name."""

    def __init__(self) -> None:
        self._clean: dict[str, str] = {}

    def clean(self, name: str) -> str:
        """Return the name, its invalid characters replaced, cut if it is too long."""
        cached = self._clean.get(name)
        if cached is None:
            if len(self._clean) >= _MOST_CACHED_NAMES:
                self._clean.clear()
            cached = self._clean[name] = self._made(name)
        return cached

    def _made(self, name: str) -> str:
        raw = text(name, _LONGEST_NAME)
        if _is_metric(raw):
            return raw
        made = _not_metric.sub("_", raw)
        made = _cut(made if _is_metric(made[:1]) else f"_{made}", raw, MAX_METRIC_NAME)
        warn_once(f"metric {raw!r:.80}", f"its name is sent as {made}")
        return made


def sendable(names: Iterable[str]) -> tuple[str, ...]:
    """Return the sorted names that fit one batch of telemetry."""
    fit = tuple(sorted(filter(_is_metric, names)))
    if len(fit) > MAX_METRICS:
        warn_once("metrics", f"need at most {MAX_METRICS} names at a time, were {len(fit)}")
    return fit[:MAX_METRICS]


def local_value(value: Any) -> Any:
    """Return a DTensor's local value if it is complete on this rank; other values unchanged.

    Nothing is reduced: that is a collective, and the other ranks do not take part.

    Raises ValueError if this rank has only a part of it.
    """
    placements = getattr(value, "placements", None)
    if placements is None or not hasattr(value, "to_local"):
        return value
    for ranks, placement in zip(value.device_mesh.shape, placements, strict=True):
        if ranks > 1 and not placement.is_replicate():
            raise ValueError(
                f"this rank has only a part of a DTensor placed {placement}; pass its "
                ".full_tensor(), which all ranks must call"
            )
    return value.to_local()


def _plain(value: Any) -> bool | int | float | str | None:
    """Return ``value`` in one of the plain types, None if that is impossible.

    A subclass, as of NumPy or an enum, cannot be encoded.
    """
    try:
        own = local_value(value)
        return _plain_of(own.item() if hasattr(own, "item") else own)
    except Exception:  # noqa: BLE001 - an object of the user's, such as a tensor of many elements
        return None


def _plain_of(value: Any) -> bool | int | float | str | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        number = int(value)
        return number if -(2**63) <= number < 2**63 else None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return text(value, MAX_LONG_TEXT) if isinstance(value, str) else None
