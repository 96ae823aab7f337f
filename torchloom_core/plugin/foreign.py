"""Say in one line what foreign code raised or returned, whatever its own text does."""


def one_line(error: BaseException) -> str:
    """Return type and text of a foreign error, whose text may itself raise."""
    text = " ".join(told(error).split()) or "no message"
    return told(f"{type(error).__name__}: {text:.500}")


def told(value: object) -> str:
    """Return the text of a foreign object, as it can be encoded."""
    try:
        return str(value).encode(errors="backslashreplace").decode()
    except Exception:  # noqa: BLE001 - foreign code
        return "its message cannot be had"


def shown(value: object) -> str:
    """Return the beginning of what a foreign object looks like in code."""
    try:
        return told(f"{value!r:.60}")
    except Exception:  # noqa: BLE001 - foreign code
        return "without a text"
