"""``torchloom weaver``: run the controller until SIGINT or SIGTERM."""

import asyncio
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from torchloom_core.cli.dashboard_command import dashboard_process
from torchloom_core.cli.options import DASHBOARD, ConfigPath, need
from torchloom_core.cli.streams import announce, log_on_stderr
from torchloom_core.config.loading import DEFAULT_PATH, load
from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import ConfigError
from torchloom_core.floor.server_urls import shown

if TYPE_CHECKING:
    from torchloom_core.live.kernel.plugins.host import ActivePlugins


def activated(settings: Config, source: Path) -> "ActivePlugins":
    """Return the plugins that a Weaver with these settings runs, or raise what stops its start."""
    from torchloom_core.lab.activation.activation import activate
    from torchloom_core.lab.activation.discovery import discover
    from torchloom_core.live.kernel.actions.kinds import check_installed

    text = source.read_text(encoding="utf-8") if source.exists() else ""
    plugins = activate(settings, discover(), str(source), text, with_effectors=True)
    check_installed()
    return plugins


def weaver(
    *,
    dashboard: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    take_over: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    standby: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    config: ConfigPath = None,
) -> None:
    """Run the Weaver: watch the run, decide, and act, until SIGINT or SIGTERM.

    Parameters
    ----------
    dashboard
        Also serve the dashboard, in its own process, which is restarted if it crashes.
    take_over
        Take over the run or the state folder from a Weaver that is running; that one exits with
        status 13. Without the option this one does.
    standby
        Wait until no Weaver leads the run, then lead it. One that is replaced stands by again.
    """
    from torchloom_core.live.weaver import run

    if dashboard:
        need(*DASHBOARD)
    settings = load(config)
    if standby and take_over:
        raise ConfigError("--standby: need it without --take-over, which takes the run at once")
    if standby and not (settings.broker.url or settings.broker.peers):
        raise ConfigError("--standby: need broker.url or broker.peers, which outlive a host")
    log_on_stderr()
    renew = partial(activated, settings, config or DEFAULT_PATH)
    plugins = renew()
    join = Path(settings.weaver.state_dir) / "join.json"

    stack = ExitStack()

    def ready(url: str, lighthouse: str) -> None:
        lines = [
            f"Weaver of run {settings.run.name} is ready on {shown(url)}",
            f"set for trainers: TORCHLOOM_JOIN={join.resolve()}",
        ]
        if lighthouse.startswith("https"):
            where = lighthouse.partition("//")[2]
            lines.append(f"run on torchft's hosts: torchloom lighthouse-relay {where} --ca ca.pem")
        elif lighthouse:
            lines.append(f"set for torchft: TORCHFT_LIGHTHOUSE={lighthouse}")
            lines.append("to survive restarts of the lighthouse, set TORCHFT_QUORUM_RETRIES=100")
        announce(*lines)
        if dashboard:
            stack.enter_context(dashboard_process(config))

    with stack:
        asyncio.run(
            run(
                settings,
                plugins,
                ready,
                stack.close,
                take_over=take_over,
                standby=standby,
                renew=renew,
            )
        )
