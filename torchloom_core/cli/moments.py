"""A moment in a trace as a person says it."""

from datetime import UTC, datetime

from torchloom_core.clock import SECOND_NS
from torchloom_core.errors import ConfigError
from torchloom_core.trace.bundle.schema import Manifest

_DAY_S = 86_400.0


def moment_ns(text: str, manifest: Manifest) -> int:
    """Return the moment that a date or a number of days since the start names.

    Raises
    ------
    ConfigError
        If it is neither.
    """
    days = text.removesuffix("d")
    try:
        if days != text:
            return manifest.start_ns + round(float(days) * _DAY_S * SECOND_NS)
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"--until: need a date such as 2024-06-30, or days such as 30d, was {text!r}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * SECOND_NS)
