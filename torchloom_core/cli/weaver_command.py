"""``torchloom weaver``: run the controller until it is told to stop."""

import asyncio
import logging
import sys
from pathlib import Path

from torchloom_core.cli.announcing import announce
from torchloom_core.cli.options import ConfigPath
from torchloom_core.config.loading import DEFAULT_PATH, load


def weaver(*, config: ConfigPath = None) -> None:
    """Run the Weaver: watch the run, decide, and act, until SIGINT or SIGTERM.

    Parameters
    ----------
    config
        Config file; torchloom.toml in this folder unless given.
    """
    from torchloom_core.activation.activation import activate
    from torchloom_core.activation.discovery import discover
    from torchloom_core.weaver import run

    settings = load(config)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)-7s %(message)s",
        stream=sys.stderr,
        force=True,
    )
    source = config or DEFAULT_PATH
    text = source.read_text(encoding="utf-8") if source.exists() else ""
    plugins = activate(settings, discover(), str(source), text)
    join = Path(settings.weaver.state_dir) / "join.json"

    def ready(url: str, lighthouse: str) -> None:
        lines = [
            f"Weaver of run {settings.run.name} is ready on {url}",
            f"trainers find it by TORCHLOOM_JOIN={join.resolve()}",
        ]
        if lighthouse:
            lines.append(f"and its lighthouse by TORCHFT_LIGHTHOUSE={lighthouse}")
            lines.append("TORCHFT_QUORUM_RETRIES=100 has them live through its restarts")
        announce(*lines)

    asyncio.run(run(settings, plugins, ready))
