"""``torchloom init``."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from torchloom_core.cli.output import console
from torchloom_core.config.loading import DEFAULT_PATH
from torchloom_core.config.template import write_template


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
    write_template(path, force=force)
    console().print(f"wrote {path}")
