"""Say in one line what foreign code raised or returned, whatever its own text does."""

import traceback
import types
from pathlib import Path

from torchloom_core.plain_text import printable

_OURS = ("torchloom_core", "torchloom_policies", "torchloom_predictors")


def one_line(error: BaseException) -> str:
    """Return type and text of a foreign error, whose text may itself raise."""
    text = " ".join(text_of(error).split()) or "no message"
    return printable(text_of(f"{type(error).__name__}: {text:.500}"))


def text_of(value: object) -> str:
    """Return the text of a foreign object, as it can be encoded."""
    try:
        return str(value).encode(errors="backslashreplace").decode()
    except Exception:  # noqa: BLE001 - foreign code
        return "its message cannot be had"


def shown(value: object) -> str:
    """Return the beginning of what a foreign object looks like in code."""
    try:
        return text_of(f"{value!r:.60}")
    except Exception:  # noqa: BLE001 - foreign code
        return "without a text"


def is_ours(plugin: object) -> bool:
    """Return whether a plugin, or what a fitted one wraps, comes with torchLoom."""
    own = getattr(plugin, "__wrapped__", plugin)
    return type(own).__module__.partition(".")[0] in _OURS


def raised_in(error: BaseException, plugin: object, method: str) -> str:
    """Return the error and the last line of the plugin's own that led to it, in one line."""
    home = _code(plugin, method)
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [(f, n) for f, n in frames if home and f.f_code.co_filename == home.co_filename]
    frame, number = (own or frames)[-1]
    return f"{one_line(error)} ({code_place(frame.f_code, number)})"


def _code(plugin: object, method: str) -> types.CodeType | None:
    own = getattr(plugin, "__wrapped__", plugin)  # as functools has it: the author's, not ours
    code = getattr(getattr(type(own), method, None), "__code__", None)
    return code if isinstance(code, types.CodeType) else None


def home_of(plugin: object, method: str) -> str:
    """Return where the plugin's method stands."""
    code = _code(plugin, method)
    return code_place(code, code.co_firstlineno) if code else type(plugin).__name__


def code_place(code: types.CodeType, line: int) -> str:
    """Return file and line, as ``slow.py:3``."""
    return f"{Path(code.co_filename).name}:{line}"
