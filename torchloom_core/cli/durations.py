"""A length of time as a person says it."""

import re

from torchloom_core.errors import ConfigError

_UNIT_S = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(rf"(\d+(?:\.\d+)?)({'|'.join(_UNIT_S)})")


def duration_s(option: str, text: str, longest_s: float) -> float:
    """Return how many seconds a text such as 1h30m means.

    Raises
    ------
    ConfigError
        If it is no duration, none at all, or longer than ``longest_s``.
    """
    seconds = sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(text))
    if _PART.sub("", text) or not 0 < seconds <= longest_s:
        raise ConfigError(
            f"{option}: need a duration such as 30s, 15min or 2d, at most "
            f"{longest_s / _UNIT_S['d']:.0f}d, was {text!r}"
        )
    return seconds
