"""``torchloom new``: write a package with its entry points and its tests.

Each folder in ``templates`` is a kind of package and holds the files of its package, called
``example``: a new kind is a new folder.
"""

import keyword
import re
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from torchloom_core.cli.output import console
from torchloom_core.floor.entry_points import entry_points
from torchloom_core.floor.errors import ConfigError
from torchloom_core.floor.suggest import nearest

_TEMPLATES = Path(__file__).with_name("templates")
_SUFFIXES = (".py", ".toml")
_KINDS = sorted(path.name for path in _TEMPLATES.iterdir())


def new(
    kind: Annotated[str, Parameter(help=f"Kind of package: {', '.join(_KINDS)}.")],
    name: str,
    /,
) -> None:
    """Write a package with a plugin, a capability or an adapter, and its tests.

    It is written into the folder NAME.

    Parameters
    ----------
    name
        Name of what it brings, such as night_watch.
    """
    if kind not in _KINDS:
        raise ConfigError(f"need a kind of package, was {kind!r}{nearest(kind, _KINDS)}")
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name):
        raise ConfigError(f"need a name of a-z, 0-9 and _, a letter first, was {name!r}")
    templates = _TEMPLATES / kind
    groups = re.findall(r'entry-points\."?([\w.]+)', (templates / "pyproject.toml").read_text())
    if keyword.iskeyword(name) or name in {point.name for point in entry_points(*groups)}:
        raise ConfigError(f"need a name that is not taken, was {name!r}")
    folder = Path(name)
    try:
        folder.mkdir()
    except FileExistsError:
        raise ConfigError(f"{folder}: need a new folder, was an existing one") from None
    for template in sorted(path for path in templates.rglob("*") if path.suffix in _SUFFIXES):
        path = folder / _named(str(template.relative_to(templates)), name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(_named(template.read_text(encoding="utf-8"), name), encoding="utf-8")
        console().print(f"wrote {path}", markup=False, soft_wrap=True)


def _named(text: str, name: str) -> str:
    """Return ``text`` with ``name`` in place of ``example``."""
    text = text.replace("torchloom-example", f"torchloom-{name.replace('_', '-')}")
    text = text.replace("Example", name.title().replace("_", ""))
    return text.replace("example", name)
