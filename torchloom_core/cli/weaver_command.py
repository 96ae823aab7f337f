"""``torchloom weaver``: run the controller until it is told to stop."""

import asyncio
import logging
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from torchloom_core.cli.announcing import announce
from torchloom_core.cli.dashboard_process import dashboard_process
from torchloom_core.cli.extras import DASHBOARD, need
from torchloom_core.cli.options import ConfigPath
from torchloom_core.config.loading import DEFAULT_PATH, load
from torchloom_core.server_urls import shown


def weaver(
    *,
    dashboard: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    take_over: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    config: ConfigPath = None,
) -> None:
    """Run the Weaver: watch the run, decide, and act, until SIGINT or SIGTERM.

    Parameters
    ----------
    dashboard
        Serve the dashboard, too, as `torchloom dashboard` does, in a process of its own, which is
        started again if it dies.
    take_over
        Take the run, or the state folder, from a Weaver that is alive, which ends with status 13;
        else this one does.
    config
        Config file; torchloom.toml in this folder unless given.
    """
    from torchloom_core.activation.activation import activate
    from torchloom_core.activation.discovery import discover
    from torchloom_core.weaver import run

    if dashboard:
        need(*DASHBOARD)
    settings = load(config)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)-7s %(message)s",
        stream=sys.stderr,
        force=True,
    )
    source = config or DEFAULT_PATH
    text = source.read_text(encoding="utf-8") if source.exists() else ""
    renew = partial(activate, settings, discover(), str(source), text)
    plugins = renew()
    join = Path(settings.weaver.state_dir) / "join.json"

    stack = ExitStack()

    def ready(url: str, lighthouse: str) -> None:
        lines = [
            f"Weaver of run {settings.run.name} is ready on {shown(url)}",
            f"trainers find it by TORCHLOOM_JOIN={join.resolve()}",
        ]
        if lighthouse:
            lines.append(f"and its lighthouse by TORCHFT_LIGHTHOUSE={lighthouse}")
            lines.append("TORCHFT_QUORUM_RETRIES=100 has them live through its restarts")
        announce(*lines)
        if dashboard:
            stack.enter_context(dashboard_process(config))

    with stack:
        asyncio.run(run(settings, plugins, ready, take_over=take_over, renew=renew))
