"""Real nats-servers of a user's own, beside the one that a Weaver starts."""

import contextlib
import subprocess

from tests.waiting import until
from torchloom_core.transport.broker.binary import find_server


@contextlib.contextmanager
def nats_server(folder, extra="", port=-1):
    """Run a server with JetStream on in ``folder``; give its process and its ``host:port``."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "nats.conf"
    config.write_text(
        f'host: 127.0.0.1\nport: {port}\nports_file_dir: "{folder}"\n'
        f'jetstream {{ store_dir: "{folder}/js" }}\n{extra}'
    )
    with subprocess.Popen([find_server(), "-c", config], stderr=subprocess.DEVNULL) as process:
        try:
            ports = folder / f"nats-server_{process.pid}.ports"
            until(lambda: ports.exists() and ports.read_text().endswith("}"))
            yield process, ports.read_text().split('"nats://')[1].split('"')[0]
        finally:
            process.kill()
