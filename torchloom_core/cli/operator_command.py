"""``torchloom operator``: NATS credentials for a person."""

from pathlib import Path

from torchloom_core.cli.options import ConfigPath
from torchloom_core.cli.output import console
from torchloom_core.config.loading import load
from torchloom_core.floor.errors import ConfigError, StateError
from torchloom_core.floor.files import write_private
from torchloom_core.live.transport.security.credentials import Credentials
from torchloom_core.live.transport.security.nats_jwt import new_seed
from torchloom_core.wire.subjects import DEFAULT_PERSON, NAME_RULE, is_name


def operator(name: str, /, *, out: Path | None = None, config: ConfigPath = None) -> None:
    """Write NATS credentials with which a person acts under their own name.

    They are for the nats-server that the Weaver starts. The trajectory records the name.

    Parameters
    ----------
    name
        Name of the person: 1 to 64 of A-Z a-z 0-9 _ -.
    out
        New file to write. Default: NAME.creds in this folder.
    """
    if not is_name(name):
        raise ConfigError(f"need a name of {NAME_RULE}, was {name!r}")
    if name == DEFAULT_PERSON:
        raise ConfigError(f"need another name: {name} is the name of the default credentials")
    settings = load(config)
    credentials = Credentials.find(Path(settings.weaver.state_dir), settings.run.name)
    path = out or Path(f"{name}.creds")
    if path.exists():
        raise StateError(f"{path} exists already: give another --out")
    write_private(path, credentials.person_creds_text(name, new_seed("user")))
    console().print(
        f"wrote {path}: {name} passes it with --creds or NATS_CREDS", markup=False, soft_wrap=True
    )
