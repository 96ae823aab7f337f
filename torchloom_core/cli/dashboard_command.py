"""``torchloom dashboard``: see a run in a browser, and drive it."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec.structs import replace

from torchloom_core.cli.announcing import announce
from torchloom_core.cli.dashboard_process import end_with_the_weaver
from torchloom_core.cli.extras import DASHBOARD, need
from torchloom_core.cli.options import Connection
from torchloom_core.cli.weaver_client import find_weaver
from torchloom_core.config.loading import DEFAULT_PATH

_HERE = Connection()


def dashboard(
    trajectory: Path | None = None,
    /,
    *,
    report: Path | None = None,
    port: Annotated[int | None, Parameter(validator=Number(gte=0, lte=65535))] = None,
    beside: Annotated[bool, Parameter(negative="", show=False)] = False,
    connection: Connection = _HERE,
) -> None:
    """Serve the dashboard's page until SIGINT or SIGTERM.

    It prints a link that opens the page in one browser, and another one once that was used. What
    the page may do is what these credentials may.

    Parameters
    ----------
    trajectory
        The folder of a recorded run, to look back at; the run that goes on unless given.
    report
        What `torchloom evaluate` wrote, a report.json or its folder, to hold against what comes of
        the policies; the newest in a folder NAME-evaluation beside the config unless given.
    port
        Where it listens, 0 for any that is free; that of [dashboard] unless given.
    beside
        A Weaver has started it, and it ends with that one.
    """
    need(*DASHBOARD)
    if beside:
        end_with_the_weaver()
    from torchloom_core.dashboard.backtest import Backtest
    from torchloom_core.dashboard.serve import serve, serve_past

    config = connection.load()
    if port is not None:
        config = replace(config, dashboard=replace(config.dashboard, port=port))
    folder = (connection.config or DEFAULT_PATH).absolute().parent
    backtest = Backtest(report, folder, config.policies)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)-7s %(message)s",
        stream=sys.stderr,
        force=True,
    )

    def ready(link: str) -> None:
        announce(f"the dashboard, for one browser: {link}")

    if trajectory is not None:
        asyncio.run(serve_past(config, trajectory, backtest, ready))
        return
    address = find_weaver(connection)
    asyncio.run(serve(config, address.url, address.creds, backtest, ready))
