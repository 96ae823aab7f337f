"""Find the command line of a capability without importing it, so that help texts cost little."""

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from torchloom_core.floor.errors import PluginError

_ACTING = "Act on the run"


class FoundCommand(NamedTuple):
    """A capability's command: its module, where its function is, and how it is listed."""

    module: str
    function: str
    help: str
    group: str


def verb_of(name: str) -> str:
    """Return the command of a capability, such as ``flush-logs`` of ``flush_logs``."""
    return name.replace("_", "-")


def find_command(package: str, name: str) -> FoundCommand | None:
    """Return the command of the capability ``name`` in ``package``; None if it has none.

    The function has the name of the capability; it may also be a cyclopts ``App``, for a command
    with others below it, whose help is the module's docstring.
    ``GROUP = "Observe and analyze"`` in the module lists it under that heading.

    Raises
    ------
    PluginError
        If the package is not there, or its module lacks the function.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise PluginError(f"need the package {package}, was none")
    path = Path(spec.submodule_search_locations[0], "command.py")
    if not path.exists():
        return None
    group, text = _ACTING, None
    module_code = ast.parse(path.read_bytes())
    for part in module_code.body:
        match part:
            case ast.FunctionDef(name=function) if function == name:
                text = ast.get_docstring(part) or ""
            case ast.Assign(targets=[ast.Name(id=app)]) if app == name:
                text = ast.get_docstring(module_code) or ""
            case ast.Assign(targets=[ast.Name(id="GROUP")], value=ast.Constant(value=str(heading))):
                group = heading
    if text is None:
        raise PluginError(f"need a function {name} in {package}.command, was none")
    module = f"{package}.command"
    return FoundCommand(module, f"{module}:{name}", text, group)
