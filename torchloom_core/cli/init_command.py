"""``torchloom init``: write the commented ``torchloom.toml``."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from torchloom_core.cli.output import console
from torchloom_core.config.loading import DEFAULT_PATH
from torchloom_core.floor.errors import ConfigError, StateError


def init(
    path: Path = DEFAULT_PATH, /, *, force: Annotated[bool, Parameter(negative="")] = False
) -> None:
    """Write a config file with every key, its default and its meaning.

    Parameters
    ----------
    path
        File to write.
    force
        Overwrite an existing file.
    """
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(template_text())
    except FileExistsError:
        raise ConfigError(f"{path}: exists already; --force overwrites it") from None
    except OSError as error:
        raise StateError(f"{path}: cannot be written: {error.strerror}") from None
    console().print(f"wrote {path}")


def template_text() -> str:
    """Return the text of the file."""
    return (files("torchloom_core.config") / "template.toml").read_text(encoding="utf-8")
