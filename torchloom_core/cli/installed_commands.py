"""Commands that any package can bring: ``torchloom VERB`` and ``torchloom trace import NAME``.

An entry point in the group ``torchloom.commands`` or ``torchloom.importers`` has the name of the
command and the function to run. torchLoom's own importers are found in the same way.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cyclopts import App, Group

from torchloom_core.cli.app import app, importers
from torchloom_core.floor.errors import PluginError
from torchloom_core.interface.foreign import one_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_OTHERS = Group("From other packages", sort_key=3)
_OWN = "torchloom"


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
        _add("importer", words[2:3], importers)
    elif not words or words[0] not in app or words[0] in app.help_flags:
        _add("command", words[:1], app)


def _add(kind: str, named: Sequence[str], tree: App) -> None:
    from importlib.metadata import entry_points  # costs 10 ms, which most commands need not

    points = [
        (point.dist.name if point.dist else "unknown", point)
        for point in entry_points(group=f"torchloom.{kind}s")
    ]
    points.sort(key=lambda at: (at[0] != _OWN, at[1].name, at[1].value))
    for package, point in [at for at in points if at[1].name in named] or points:
        try:
            _register(tree, point)
        except (Exception, SystemExit) as error:
            is_named = point.name in named and point.name not in tree
            if is_named and package == _OWN:
                raise
            problem = str(error) if isinstance(error, PluginError) else one_line(error)
            text = f"{kind} {point.name} of package {package} cannot be used: {problem}"
            if is_named:
                raise PluginError(text) from None
            from torchloom_core.cli.output import warn

            warn(text)


def _register(tree: App, point: "EntryPoint") -> None:
    if point.name in tree:
        raise PluginError("another command has this name")
    target = point.load()
    if not callable(target):
        raise PluginError(f"need a function, was a {type(target).__name__}")
    if tree is importers:
        from torchloom_core.cli.importer_command import command_of

        tree.command(command_of(target), name=point.name)
    elif isinstance(target, App):
        tree.command(target, name=point.name)
    else:
        tree.command(target, name=point.name, group=_OTHERS)
