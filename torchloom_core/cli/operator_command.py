"""``torchloom operator``: credentials for one more person."""

from pathlib import Path

from torchloom_core.cli.options import ConfigPath
from torchloom_core.cli.output import console
from torchloom_core.config.loading import load
from torchloom_core.errors import ConfigError, StateError
from torchloom_core.files import write_private
from torchloom_core.transport.security.credentials import Credentials
from torchloom_core.transport.security.nats_jwt import new_seed
from torchloom_core.wire.subjects import DEFAULT_PERSON, NAME_RULE, is_name


def operator(name: str, /, *, out: Path | None = None, config: ConfigPath = None) -> None:
    """Write credentials by which a person asks and acts under a name of their own.

    For the server that the Weaver starts. The name stands in the trajectory.

    Parameters
    ----------
    name
        The person's name: 1 to 64 of A-Z a-z 0-9 _ -.
    out
        File to write, which must not be there yet; NAME.creds in this folder unless given.
    config
        Config file; torchloom.toml in this folder unless given.
    """
    if not is_name(name):
        raise ConfigError(f"need a name of {NAME_RULE}, was {name!r}")
    if name == DEFAULT_PERSON:
        raise ConfigError(f"need another name: who may read the state folder asks as {name}")
    settings = load(config)
    credentials = Credentials.find(Path(settings.weaver.state_dir), settings.run.name)
    path = out or Path(f"{name}.creds")
    if path.exists():
        raise StateError(f"{path}: need a file that is not there yet")
    write_private(path, credentials.person_creds_text(name, new_seed("user")))
    console().print(
        f"wrote {path}: {name} names it by --creds or NATS_CREDS", markup=False, soft_wrap=True
    )
