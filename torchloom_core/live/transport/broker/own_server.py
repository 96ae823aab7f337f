"""A nats-server of the user's own that trusts this run's keys: each worker has its own rights."""

import logging
from pathlib import Path

from torchloom_core.config.services import Broker
from torchloom_core.floor.files import write_private
from torchloom_core.live.transport.security.credentials import Credentials

_log = logging.getLogger(__name__)


class OwnServer:
    """The credentials of a run on it, and the file with accounts that its config includes."""

    def __init__(self, state_dir: Path, run: str, settings: Broker) -> None:
        self.credentials = Credentials.ensure(state_dir, run)
        self.shared_url = settings.url
        self._path = Path(settings.accounts)
        self.write()

    def write(self) -> bool:
        """Write the file if it is not up to date, and return whether it was not."""
        text = self.credentials.server_config()
        if self._path.exists() and self._path.read_text(encoding="utf-8") == text:
            return False
        write_private(self._path, text)
        return True

    def reload(self) -> None:
        """Write what was revoked; the server has to load it."""
        if self.write():
            _log.warning("%s has changed: let all servers load it again", self._path)
