"""Storages and encodings that are loaded only where they are used, by their entry points.

The group ``torchloom.checkpoint_storages`` has a class for a scheme of URLs, or for all others as
``url``; ``torchloom.checkpoint_encodings`` a module with ``encode``, ``decode``, ``needs_base`` and
``role_of``. Their packages are not paid for otherwise.
"""

from functools import cache
from typing import Any

from torchloom_core.floor.entry_points import entry_points
from torchloom_core.floor.errors import CheckpointError

STORAGES = "torchloom.checkpoint_storages"
ENCODINGS = "torchloom.checkpoint_encodings"


@cache
def installed(group: str, *names: str) -> Any:
    """Return what the first of these entry points names that is installed.

    Raises CheckpointError if there is none, or a package that it needs is not installed.
    """
    points = {point.name: point for point in entry_points(group)}
    for name in names:
        if name in points:
            try:
                return points[name].load()
            except ImportError as error:
                raise CheckpointError(f"{name}: {error}") from None
    raise CheckpointError(f"need an entry point {' or '.join(names)} in {group}, was none")
