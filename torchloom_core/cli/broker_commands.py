"""``torchloom broker``: a host's nats-server of a cluster, and the keys that its hosts share."""

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from torchloom_core.cli.options import ConfigPath
from torchloom_core.cli.output import console
from torchloom_core.cli.streams import announce, log_on_stderr
from torchloom_core.config.loading import load
from torchloom_core.floor.errors import ConfigError
from torchloom_core.floor.first_done import first_done

if TYPE_CHECKING:
    from torchloom_core.live.transport.broker import EmbeddedBroker


def keys(*, config: ConfigPath = None) -> None:
    """Make the keys that all hosts of `[broker] peers` share, on one host.

    Copy the folder that it prints to the same place on the other hosts, by a safe way: who has it
    can give itself any right in the run.
    """
    from torchloom_core.live.transport.security.credentials import Credentials

    settings = load(config)
    state_dir = Path(settings.weaver.state_dir).absolute()
    made = Credentials.ensure(state_dir, settings.run.name)
    folder = made.weaver_creds.parent
    console().print(
        f"copy {folder} to the same place on the other hosts of [broker] peers, such as by "
        f"`rsync -a --relative {folder} HOST:/`",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def run(*, config: ConfigPath = None) -> None:
    """Run this host's nats-server of `[broker] peers`, where no Weaver does, until SIGTERM.

    The server is restarted if it ends, loads a renewed certificate, and refuses what is revoked.
    """
    settings = load(config)
    if not settings.broker.peers:
        raise ConfigError("[broker] peers: need the hosts of a cluster, was none")
    log_on_stderr()
    from torchloom_core.live.transport.broker import EmbeddedBroker

    state_dir = Path(settings.weaver.state_dir)
    broker = EmbeddedBroker(state_dir, settings.run.name, settings.broker)
    asyncio.run(_run(settings.run.name, broker))


async def _run(run: str, broker: "EmbeddedBroker") -> None:
    from torchloom_core.live.weaver.access_sharing import follow_access

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await broker.start()
    announce(f"nats-server of {broker.shared_url} is ready on {broker.url}")
    await first_done(broker.supervise(), follow_access(run, broker), stop.wait())
    await broker.stop()
