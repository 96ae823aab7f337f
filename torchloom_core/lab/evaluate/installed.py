"""The installed plugins, loaded once for the whole evaluation."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from torchloom_core.lab.activation.discovery import PluginInfo, by_name, discover


@lru_cache(maxsize=1)
def installed() -> tuple[PluginInfo, ...]:
    """Load the installed plugins, once per process."""
    return tuple(discover())


def policies() -> Mapping[str, type[Any]]:
    """Return the policies that loaded, by name."""
    found = by_name(installed(), "policy")
    return {name: info.cls for name, info in found.items() if info.cls}
