"""The join file, by which trainers find a Weaver: the daemon writes it to the state folder."""

import socket
from pathlib import Path

from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import StateError
from torchloom_core.floor.files import write_private
from torchloom_core.live.transport.broker import EmbeddedBroker, nats_url
from torchloom_core.wire import codec
from torchloom_core.wire.messages import JoinFile

_ANY_ADDRESS = ("0.0.0.0", "::")


def write_join_file(
    state_dir: Path, config: Config, url: str, broker: EmbeddedBroker | None
) -> None:
    """Write the join file, readable by its owner alone.

    ``url`` is the broker's, as reached from this host. With your own server (no ``broker``) workers
    do not enrol. StateError if it cannot be written, or the config's credentials cannot be read.
    """
    settings = config.broker
    creds = settings.worker_creds or settings.creds
    try:
        if broker is not None:
            text = broker.credentials.join_creds_text
            if settings.host in _ANY_ADDRESS:
                url = nats_url(socket.gethostname(), broker.port)
        else:
            text = Path(creds).read_text(encoding="utf-8") if creds else ""
        state_dir.mkdir(parents=True, exist_ok=True)
        join = JoinFile(url=url, run=config.run.name, creds=text, enrol=broker is not None)
        write_private(state_dir / "join.json", codec.encode(join).decode())
    except OSError as error:
        raise StateError(f"{error.filename}: {error.strerror}") from None
