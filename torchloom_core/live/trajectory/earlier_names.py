"""Read what was recorded or stored under the names of format 1, of November 2026 and before.

The reader calls :func:`renamed` on every line of a record of that format, and the Weaver on stored
state that it cannot read as it is.
"""

from typing import Any

import msgspec

from torchloom_core.live.trajectory.layout import Line

_VALUES: dict[str, dict[str, str]] = {
    "type": {"command_life": "command_status", "recall": "withdrawal"},
    "verb": {"together": "fenced_change", "tell": "write_log"},
    "status": {"recalled": "withdrawn"},
    "want": {"remark": "annotate", "take_wheel": "take_control", "leave_wheel": "release_control"},
    "actuators": {"together": "fenced_change", "tell": "write_log"},
    "cause": {"stand-by": "standby"},
    "kind": {"remark": "annotation", "wheel": "control"},
}
_KEYS = {
    "deed": "operation",
    "door": "probe_address",
    "knock": "token",
    "life": "incarnation",
    "lives": "incarnations",
    "says": "result",
    "seat": "session",
    "wish": "summary",
    "room": "dashboard",
}
_OTHERS = frozenset(
    {
        *("before", "cordoned_until_ns", "fields", "hazard", "hazards", "knobs", "labels"),
        *("metrics", "missed", "now", "values", "why"),
    }
)
"""Fields that hold names of users' own, which are left as they are."""

_NOT_COMPARED = frozenset({"detail", "reason", "text", "v", "why"})
"""Fields that hold sentences for people, worded otherwise since, and the version of the schema."""


def renamed(data: bytes | msgspec.Raw) -> bytes:
    """Return a JSON value of format 1 with the names of today."""
    return msgspec.json.encode(_renamed(msgspec.json.decode(data)))


def renamed_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a record of format 1 with the names of today."""
    return {_KEYS.get(key, key): value for key, value in config.items()}


def renamed_line(line: Line) -> Line:
    """Return a line of format 1 with the names of today."""
    body = msgspec.Raw(renamed(line.body))
    return msgspec.structs.replace(line, kind=_VALUES["type"].get(line.kind, line.kind), body=body)


def decision_of(output: bytes) -> bytes:
    """Return an output without its sentences: what was decided, however it is worded."""
    body = msgspec.json.decode(output) if output else None
    return msgspec.json.encode(_compared(body))


def _renamed(value: Any) -> Any:
    if isinstance(value, list):
        return [_renamed(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        _KEYS.get(key, key): _own(own) if key in _OTHERS else _value(key, own)
        for key, own in value.items()
    }


def _own(value: Any) -> Any:
    """Return names of users' own as they are; the judgement of a preview is JSON text in them."""
    piece = value.get("piece") if isinstance(value, dict) else None
    if isinstance(piece, str) and '"part":"judgement"' in piece:
        return {**value, "piece": piece.replace('"says":', '"result":')}
    return value


def _value(key: str, value: Any) -> Any:
    if isinstance(value, str):
        return _VALUES.get(key, {}).get(value, value)
    if key == "actuators" and isinstance(value, list):
        return [_value(key, one) for one in value]
    return _renamed(value)


def _compared(value: Any) -> Any:
    if isinstance(value, list):
        return [_compared(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {key: _compared(own) for key, own in value.items() if key not in _NOT_COMPARED}
