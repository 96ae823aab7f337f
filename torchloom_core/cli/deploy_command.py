"""``torchloom deploy``: write the files to run a Weaver under a supervisor.

Each folder in ``deployments`` is a way to run it: a new way is a new folder.
"""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from torchloom_core import __version__
from torchloom_core.cli.output import console
from torchloom_core.floor.errors import ConfigError, StateError
from torchloom_core.floor.suggest import nearest

_FOLDER = Path(__file__).with_name("deployments")
WAYS = sorted(path.name for path in _FOLDER.iterdir())


def deploy(
    way: Annotated[str, Parameter(help=f"Way to run it: {', '.join(WAYS)}.")],
    /,
    *,
    to: Path,
    force: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Write units, an image's recipe, a batch script, a component or a chart, to be adapted.

    Nothing is installed or started. Programs are those of this installation.

    Parameters
    ----------
    to
        Folder to write to; it is made.
    force
        Overwrite existing files.
    """
    if way not in WAYS:
        raise ConfigError(f"need a way to run it, was {way!r}{nearest(way, WAYS)}")
    source = _FOLDER / way
    files = sorted(path for path in source.rglob("*") if path.is_file())
    targets = [to / path.relative_to(source) for path in files if "__pycache__" not in path.parts]
    if taken := [path for path in targets if path.exists() and not force]:
        raise ConfigError(f"{taken[0]}: exists already; --force overwrites it")
    for path in targets:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_filled(source / path.relative_to(to)), encoding="utf-8")
        except OSError as error:
            raise StateError(f"{path}: cannot be written: {error.strerror}") from None
        console().print(f"wrote {path}", markup=False, soft_wrap=True)


def _filled(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return text.replace("@BIN@", str(Path(sys.executable).parent)).replace("@VERSION@", __version__)
