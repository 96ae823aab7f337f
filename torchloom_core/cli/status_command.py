"""``torchloom status``: the run at this moment, or updated live."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from torchloom_core.cli.options import AsJson, Connection
from torchloom_core.cli.output import console, print_json, warn
from torchloom_core.cli.weaver_client import fetch_status, open_client
from torchloom_core.floor.errors import RequestError
from torchloom_core.wire.operator import Status

if TYPE_CHECKING:
    from torchloom_core.live.transport import ControlClient

_HERE = Connection()


def status(
    *,
    watch: Annotated[bool, Parameter(alias="-w", negative="", show_default=False)] = False,
    every: Annotated[float, Parameter(validator=Number(gt=0))] = 1.0,
    metric: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    json: AsJson = False,
    connection: Connection = _HERE,
) -> None:
    """Show the run's workers, knobs, failure probabilities, commands in progress and plugins.

    Parameters
    ----------
    watch
        Update until interrupted, also across restarts of the Weaver.
    every
        Interval between updates with --watch, seconds.
    metric
        Metric to show, may be repeated. Default: the first four.
    """
    asyncio.run(_show(connection, watch, every, metric, json))


async def _show(
    connection: Connection, watch: bool, every_s: float, metrics: tuple[str, ...], json: bool
) -> None:
    from rich.live import Live

    from torchloom_core.cli.status_view import render

    async with open_client(connection) as client:
        last = await fetch_status(client)
        if not watch:
            if json:
                print_json(last)
            else:
                console().print(render(last, metrics))
            return
        if json:
            print_json(last)
            last_error = ""
            async for now, error in _statuses(client, every_s):
                if now is not None:
                    print_json(now)
                elif not last_error:
                    warn(f"{error}; retrying")
                last_error = error
            return
        with Live(render(last, metrics), console=console(), auto_refresh=False) as live:
            async for now, error in _statuses(client, every_s):
                last = now or last
                live.update(render(last, metrics, error), refresh=True)


async def _statuses(
    client: "ControlClient", every_s: float
) -> AsyncIterator[tuple[Status | None, str]]:
    """Yield the run's status and an empty text, or None and the error, for ever."""
    while True:
        await asyncio.sleep(every_s)
        try:
            yield await fetch_status(client), ""
        except RequestError as error:
            yield None, str(error)
