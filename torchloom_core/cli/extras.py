"""Ask for what a command needs at its end before it begins."""

from importlib.util import find_spec

SCORES = ("scipy", "sklearn", "statsmodels")
"""What scoring forecasts needs."""


DASHBOARD = ("websockets", "starlette", "uvicorn")
"""What serving the dashboard needs; the first is of its extra alone."""


def need(*modules: str) -> None:
    """Raise ModuleNotFoundError for the first module that is not installed."""
    for module in modules:
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
