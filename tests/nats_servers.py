"""Real nats-servers of a user's own, beside the one that a Weaver starts."""

import contextlib
import json
import subprocess

from tests.waiting import until
from torchloom_core.live.transport.broker.binary import find_server
from torchloom_core.live.transport.ports import lasting_port


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
            yield process, json.loads(ports.read_text())["nats"][0].partition("//")[2]
        finally:
            process.kill()


@contextlib.contextmanager
def nats_cluster(folder, extra=""):
    """Run three servers as a cluster; give their processes and the ``host:port`` of each."""
    ports = free_ports(6)
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports[:3])
    cluster = f"cluster {{ name: c, routes: [{routes}], listen: 127.0.0.1:"
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(
                nats_server(
                    folder / f"s{number}",
                    f"server_name: s{number}\n{extra}{cluster}{ports[number]} }}\n",
                    ports[3 + number],
                )
            )
            for number in range(3)
        ]
        yield [process for process, _ in servers], [address for _, address in servers]


def free_ports(count):
    return [lasting_port("127.0.0.1") for _ in range(count)]
