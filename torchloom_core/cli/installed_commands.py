"""Commands of installed packages: ``torchloom VERB`` and ``torchloom trace import NAME``.

An entry point in the group ``torchloom.capabilities`` names a package whose module ``command``, if
it has one, is a command. One in ``torchloom.commands`` or ``torchloom.importers`` has the name of
the command and the function to run. torchLoom's own are found in the same way.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cyclopts import App, Group

from torchloom_core.cli.app import RUNNING, app, importers
from torchloom_core.cli.found_command import find_command, verb_of
from torchloom_core.floor.entry_points import entry_points
from torchloom_core.floor.errors import PluginError
from torchloom_core.interface.foreign import one_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_OTHERS = Group("From other packages", sort_key=3)
_OWN = "torchloom"
_CAPABILITY, _COMMAND, _IMPORTER = (
    f"torchloom.{kind}" for kind in ("capabilities", "commands", "importers")
)
_KIND = {_CAPABILITY: "capability", _COMMAND: "command", _IMPORTER: "importer"}


def add_installed(words: Sequence[str]) -> None:
    """Add to the tree the installed commands that ``words``, the arguments of a call, may mean.

    One that cannot be used is left out, with a line on stderr.

    Raises
    ------
    PluginError
        If ``words`` name a command that cannot be used.
    ImportError
        If they name one of torchLoom's own, and an extra is missing.
    """
    if words[:2] == ["trace", "import"]:
        _add((_IMPORTER,), words[2:3], importers)
    elif not words or words[0] not in app or words[0] in app.help_flags:
        _add((_CAPABILITY, _COMMAND), words[:1], app)


def _add(groups: Sequence[str], named: Sequence[str], tree: App) -> None:
    points = [
        (point.dist.name if point.dist else "unknown", point) for point in entry_points(*groups)
    ]
    points.sort(key=lambda at: (at[0] != _OWN, at[1].group, at[1].name, at[1].value))
    for package, point in [at for at in points if _verb(at[1]) in named] or points:
        is_named = _verb(point) in named and _verb(point) not in tree
        try:
            _register(tree, point, is_named, package)
        except (Exception, SystemExit) as error:
            if is_named and package == _OWN:
                raise
            problem = str(error) if isinstance(error, PluginError) else one_line(error)
            text = (
                f"{_KIND[point.group]} {point.name} of package {package} cannot be used: {problem}"
            )
            if is_named:
                raise PluginError(text) from None
            from torchloom_core.cli.output import warn

            warn(text)


def _verb(point: "EntryPoint") -> str:
    return verb_of(point.name) if point.group == _CAPABILITY else point.name


def _register(tree: App, point: "EntryPoint", is_named: bool, package: str) -> None:
    target: Any
    options: dict[str, Any] = {}
    if point.group == _CAPABILITY:
        found = find_command(point.value, point.name)
        if found is None:
            return
        module, target, options["help"], options["group"] = found
        if is_named:
            import_module(module)  # here, where its error becomes one line
    else:
        target = point.load()
        if not callable(target):
            raise PluginError(f"need a function, was a {type(target).__name__}")
        if tree is importers:
            from torchloom_core.cli.importer_command import command_of

            target = command_of(target)
        elif not isinstance(target, App):
            options["group"] = RUNNING if package == _OWN else _OTHERS
    if _verb(point) in tree:
        raise PluginError("another command has this name")
    tree.command(target, name=_verb(point), **options)
