"""``torchloom dashboard``: watch and control a run in a browser."""

import asyncio
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec.structs import replace

from torchloom_core.cli.announcing import announce, log_on_stderr
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
    """Serve the dashboard until SIGINT or SIGTERM.

    Prints a link that opens the page in one browser, and the next link once that is used. The
    page has the permissions of these credentials.

    Parameters
    ----------
    trajectory
        Folder of a recorded run to show. Default: the live run.
    report
        A backtest to compare the live policies with: report.json of `torchloom evaluate`, or its
        folder. Default: the newest in a folder NAME-evaluation beside the config.
    port
        Port to listen on; 0: any free port. Default: port of [dashboard] in the config.
    beside
        Started by a Weaver: end when that Weaver ends.
    """
    need(*DASHBOARD)
    if beside:
        end_with_the_weaver()
    from torchloom_core.live.dashboard.backtest import Backtest
    from torchloom_core.live.dashboard.serve import serve, serve_recorded

    config = connection.load()
    if port is not None:
        config = replace(config, dashboard=replace(config.dashboard, port=port))
    folder = (connection.config or DEFAULT_PATH).absolute().parent
    backtest = Backtest(report, folder, config.policies)
    log_on_stderr()

    def ready(link: str) -> None:
        announce(f"dashboard link, for one browser: {link}")

    if trajectory is not None:
        asyncio.run(serve_recorded(config, trajectory, backtest, ready))
        return
    address = find_weaver(connection)
    asyncio.run(serve(config, address.url, address.creds, backtest, ready))
