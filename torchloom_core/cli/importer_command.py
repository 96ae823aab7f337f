"""``torchloom trace import NAME``: an importer as a command, with the importer's own options."""

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Annotated, Any

from cyclopts import Parameter

from torchloom_core.cli.interrupts import reports_output
from torchloom_core.cli.options import AsJson
from torchloom_core.cli.progress import progress
from torchloom_core.cli.trace_make_commands import Force
from torchloom_core.cli.trace_view import print_bundle
from torchloom_core.floor.errors import PluginError


def command_of(importer: Callable[..., None]) -> Callable[..., None]:
    """Return a command that calls ``importer``, then prints the files of the bundle.

    An importer's parameter ``progress`` is no option: it takes the function that shows progress.

    Raises
    ------
    PluginError
        If it has not the parameters ``out``, ``name`` and ``force``.
    """
    signature = inspect.signature(importer, eval_str=True)
    options = dict(signature.parameters)
    if not {"out", "name", "force"} <= options.keys():
        raise PluginError(f"need the parameters out, name and force, was {', '.join(options)}")
    for name, option in options.items():
        if option.kind is option.POSITIONAL_OR_KEYWORD:
            options[name] = option.replace(kind=option.POSITIONAL_ONLY)
    shows_progress = options.pop("progress", None) is not None
    for name, option in options.items():
        if option.default == ():
            several = Parameter(negative="", show_default=False)
            options[name] = option.replace(annotation=Annotated[option.annotation, several])
    options["force"] = options["force"].replace(annotation=Force)
    options["json"] = inspect.Parameter(
        "json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson
    )

    def command(*args: Any, json: bool = False, **kwargs: Any) -> None:
        out = signature.bind(*args, **kwargs).arguments["out"]
        with reports_output(out), progress() if shows_progress else nullcontext() as report:
            importer(*args, **kwargs, **({"progress": report} if shows_progress else {}))
        print_bundle(out, json)

    command.__doc__ = importer.__doc__
    command.__annotations__ = {name: option.annotation for name, option in options.items()}
    vars(command)["__signature__"] = signature.replace(parameters=[*options.values()])
    return command
