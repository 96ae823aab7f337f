"""Options that several commands share, and the modules that they need later."""

import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from torchloom_core.config.loading import load
from torchloom_core.config.schema import Config

MOST = 1e9
"""The largest number of days, seconds or alarms that an option accepts, as in a config."""

_CONNECTION = Group("Which run", sort_key=10)

ConfigPath = Annotated[
    Path | None,
    Parameter(
        name="--config",
        group=_CONNECTION,
        help="Config file. Default: torchloom.toml in this folder.",
    ),
]

Seconds = Annotated[float | None, Parameter(validator=Number(gt=0, lte=MOST))]
Rate = Annotated[float, Parameter(validator=Number(gte=0, lte=MOST))]
Several = Annotated[tuple[str, ...], Parameter(negative="", show_default=False)]

AsJson = Annotated[
    bool, Parameter(name="--json", negative="", show_default=False, help="Print JSON.")
]

Last = Annotated[int | None, Parameter(validator=Number(gte=1, lte=sys.maxsize))]
"""The number of newest records to print."""

Wait = Annotated[
    float,
    Parameter(
        name="--wait",
        help="How long to wait for the action to end, seconds; 0: do not wait.",
        validator=Number(gte=0),
    ),
]

Role = Annotated[
    str, Parameter(name="--role", show_default=False, help="Only this role. Default: all roles.")
]

WAIT_S = 60.0
"""The default of ``Wait``, seconds."""
SCORES = ("scipy", "sklearn", "statsmodels")
"""Modules for scoring forecasts."""


DASHBOARD = ("websockets", "starlette", "uvicorn")
"""Modules for serving the dashboard; only its extra brings the first."""


@Parameter(name="*", group=_CONNECTION)
@dataclass(frozen=True, kw_only=True)
class Connection:
    """How to reach the Weaver.

    Parameters
    ----------
    config
        Config file. Default: torchloom.toml in this folder.
    url
        URL of the run's nats-server; overrides NATS_URL and the config.
    creds
        NATS credentials file; overrides NATS_CREDS and the config.
    """

    config: Path | None = None
    url: str | None = None
    creds: Path | None = None

    def load(self) -> Config:
        """Read the config, with the URL of the option; ConfigError if it is wrong."""
        environment = {**os.environ, **({"NATS_URL": self.url} if self.url else {})}
        return load(self.config, environment, as_client=True)


HERE = Connection()
"""The default connection of a command: that of this folder."""


def need(*modules: str) -> None:
    """Raise ModuleNotFoundError for the first module that is not installed."""
    for module in modules:
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
