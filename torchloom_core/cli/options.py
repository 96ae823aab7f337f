"""Options that several commands share."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from torchloom_core.config.loading import load
from torchloom_core.config.schema import Config

MOST = 1e9
"""The greatest number that an option of days, seconds or alarms takes, as a config's."""

_CONNECTION = Group("Which run", sort_key=10)

ConfigPath = Annotated[Path | None, Parameter(name="--config", group=_CONNECTION)]
"""``torchloom.toml`` in this folder unless given."""

AsJson = Annotated[
    bool, Parameter(name="--json", negative="", show_default=False, help="Print JSON for machines.")
]

Last = Annotated[int | None, Parameter(validator=Number(gte=1, lte=sys.maxsize))]
"""So many of the newest."""

Wait = Annotated[
    float,
    Parameter(
        name="--wait",
        help="How long to wait for the end, seconds; 0: not at all.",
        validator=Number(gte=0),
    ),
]


@Parameter(name="*", group=_CONNECTION)
@dataclass(frozen=True, kw_only=True)
class Connection:
    """How to find the Weaver.

    Parameters
    ----------
    config
        Config file; torchloom.toml in this folder unless given.
    url
        The run's nats-server; comes before NATS_URL and the config.
    creds
        NATS credentials file; comes before NATS_CREDS and the config.
    """

    config: Path | None = None
    url: str | None = None
    creds: Path | None = None

    def load(self) -> Config:
        """Read the config; ConfigError if it is wrong."""
        return load(self.config)
