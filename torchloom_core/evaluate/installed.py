"""The plugins that are installed, as everything of an evaluation finds them."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from torchloom_core.activation.discovery import PluginInfo, by_name, discover


@lru_cache(maxsize=1)
def installed() -> tuple[PluginInfo, ...]:
    """Load the installed plugins once a process."""
    return tuple(discover())


def policies() -> Mapping[str, type[Any]]:
    """Return the policies that can be made, by name."""
    found = by_name(installed(), "policy")
    return {name: info.cls for name, info in found.items() if info.cls}
