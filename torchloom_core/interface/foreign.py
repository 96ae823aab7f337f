"""Describe in one line what plugin code raised or returned; its ``str`` may raise as well."""

import traceback
import types
from pathlib import Path

from torchloom_core.floor.plain_text import printable

_OURS = ("torchloom_core", "torchloom_policies", "torchloom_predictors")


def one_line(error: BaseException) -> str:
    """Return type and text of an error of plugin code, whose ``str`` may raise."""
    text = " ".join(text_of(error).split()) or "no message"
    return printable(text_of(f"{type(error).__name__}: {text:.500}"))


def text_of(value: object) -> str:
    """Return ``str(value)`` in encodable characters."""
    try:
        return str(value).encode(errors="backslashreplace").decode()
    except Exception:  # noqa: BLE001 - foreign code
        return "its message cannot be read"


def shown(value: object) -> str:
    """Return the beginning of ``repr(value)``."""
    try:
        return text_of(f"{value!r:.60}")
    except Exception:  # noqa: BLE001 - foreign code
        return "without a text"


def is_ours(plugin: object) -> bool:
    """Return whether a plugin, or the one that a fitted one wraps, comes with torchLoom."""
    own = getattr(plugin, "__wrapped__", plugin)
    return type(own).__module__.partition(".")[0] in _OURS


def raised_in(error: BaseException, plugin: object, method: str) -> str:
    """Return the error and the plugin's last line in its traceback, in one line."""
    home = _code(plugin, method)
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [(f, n) for f, n in frames if home and f.f_code.co_filename == home.co_filename]
    frame, number = (own or frames)[-1]
    return f"{one_line(error)} ({code_place(frame.f_code, number)})"


def _code(plugin: object, method: str) -> types.CodeType | None:
    own = getattr(plugin, "__wrapped__", plugin)  # as in functools: the author's class
    code = getattr(getattr(type(own), method, None), "__code__", None)
    return code if isinstance(code, types.CodeType) else None


def home_of(plugin: object, method: str) -> str:
    """Return file and line of the plugin's method."""
    code = _code(plugin, method)
    return code_place(code, code.co_firstlineno) if code else type(plugin).__name__


def code_place(code: types.CodeType, line: int) -> str:
    """Return file and line, as ``slow.py:3``."""
    return f"{Path(code.co_filename).name}:{line}"
