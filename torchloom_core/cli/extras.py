"""Check at the start of a command that the modules it needs later are installed."""

from importlib.util import find_spec

SCORES = ("scipy", "sklearn", "statsmodels")
"""Modules for scoring forecasts."""


DASHBOARD = ("websockets", "starlette", "uvicorn")
"""Modules for serving the dashboard; only its extra brings the first."""


def need(*modules: str) -> None:
    """Raise ModuleNotFoundError for the first module that is not installed."""
    for module in modules:
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
