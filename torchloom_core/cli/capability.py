"""What a capability's module ``command`` imports, see docs/actions.md."""

from torchloom_core.cli.options import HERE, WAIT_S, AsJson, Connection, Role, Wait
from torchloom_core.cli.output import console
from torchloom_core.cli.times import Duration
from torchloom_core.cli.weaver_client import propose
from torchloom_core.floor.errors import RequestError

__all__ = [
    "HERE",
    "WAIT_S",
    "AsJson",
    "Connection",
    "Duration",
    "RequestError",
    "Role",
    "Wait",
    "console",
    "propose",
]
