"""``torchloom notify test``: send a test message by the channels of the config."""

import time

from torchloom_core.cli.options import ConfigPath
from torchloom_core.cli.output import console
from torchloom_core.config.loading import channels, load
from torchloom_core.floor.errors import ConfigError, StateError, TorchloomError
from torchloom_core.floor.suggest import nearest


def send_test(name: str = "", /, *, config: ConfigPath = None) -> None:
    """Send a test message by one channel, or by all.

    Parameters
    ----------
    name
        The channel: NAME of its table [notify.NAME].
    """
    from torchloom_core.live.weaver.notify.channel import SendError
    from torchloom_core.live.weaver.notify.grouping import Message
    from torchloom_core.live.weaver.notify.notifier import channel_of

    settings = load(config)
    found = channels(settings)
    if not found:
        raise ConfigError("need a table [notify.NAME] in the config, there is none")
    if name and name not in found:
        raise ConfigError(f"no channel is called {name!r}{nearest(name, found)}")
    failed = []
    for each in [name] if name else found:
        message = Message(
            id=f"test.{time.time_ns()}",
            run=settings.run.name,
            cause="test",
            count=1,
            since_s=time.time(),
            lines=("A test message: notifications of this run arrive here.",),
        )
        try:
            console().print(f"{each}: {channel_of(found[each]).send(message)}")
        except (SendError, OSError, TorchloomError) as error:
            failed.append(f"{each}: {error}")
    if failed:
        raise StateError("\n".join(failed))
