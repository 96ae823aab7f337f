"""The entry points of installed packages, though one of them may be damaged."""

import logging
from collections.abc import Iterator
from importlib.metadata import EntryPoint

from torchloom_core.floor.plain_text import plain_line

_log = logging.getLogger("torchloom")


def entry_points(*groups: str) -> list[EntryPoint]:
    """Return the entry points of these groups.

    A package whose entry points cannot be read is left out, with a warning.
    """
    from importlib import metadata  # costs 10 ms, which importing a trainer need not

    try:
        return [point for group in groups for point in metadata.entry_points(group=group)]
    except Exception:  # noqa: BLE001 - a file of anyone's package
        return [point for point in _readable() if point.group in groups]


def _readable() -> Iterator[EntryPoint]:
    from importlib.metadata import distributions

    seen: set[str] = set()
    for package in distributions():
        name = "a package"
        try:
            name = package.metadata["Name"]
            points = () if name in seen else package.entry_points
        except Exception as error:  # noqa: BLE001 - a file of anyone's package
            text = f"{type(error).__name__}: {error}"
            _log.warning("%s", plain_line(f"entry points of {name} cannot be read: {text}"))
        else:
            seen.add(name)
            yield from points
