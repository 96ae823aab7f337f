"""``torchloom status``: the run at this moment, or live."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from torchloom_core.cli.options import AsJson, Connection
from torchloom_core.cli.output import console, print_json, warn
from torchloom_core.cli.weaver_client import ask_status, open_client
from torchloom_core.errors import RequestError
from torchloom_core.wire.operator import Status

if TYPE_CHECKING:
    from torchloom_core.transport import ControlClient

_HERE = Connection()


def status(
    *,
    watch: Annotated[bool, Parameter(alias="-w", negative="", show_default=False)] = False,
    every: Annotated[float, Parameter(validator=Number(gt=0))] = 1.0,
    metric: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    json: AsJson = False,
    connection: Connection = _HERE,
) -> None:
    """Show workers, knobs, hazards, commands in flight and plugins.

    Parameters
    ----------
    watch
        Go on until interrupted, also while the Weaver restarts.
    every
        How often to look with --watch, seconds.
    metric
        A metric to show, may be repeated; the first four unless given.
    """
    asyncio.run(_show(connection, watch, every, metric, json))


async def _show(
    connection: Connection, watch: bool, every_s: float, metrics: tuple[str, ...], json: bool
) -> None:
    from rich.live import Live

    from torchloom_core.cli.status_view import render

    async with open_client(connection) as client:
        last = await ask_status(client)
        if not watch:
            if json:
                print_json(last)
            else:
                console().print(render(last, metrics))
            return
        if json:
            print_json(last)
            said = ""
            async for now, trouble in _looks(client, every_s):
                if now is not None:
                    print_json(now)
                elif not said:
                    warn(f"{trouble}; trying again")
                said = trouble
            return
        with Live(render(last, metrics), console=console(), auto_refresh=False) as live:
            async for now, trouble in _looks(client, every_s):
                last = now or last
                live.update(render(last, metrics, trouble), refresh=True)


async def _looks(
    client: "ControlClient", every_s: float
) -> AsyncIterator[tuple[Status | None, str]]:
    """Yield the run's state now and again, or why there is none at the moment, for ever."""
    while True:
        await asyncio.sleep(every_s)
        try:
            yield await ask_status(client), ""
        except RequestError as error:
            yield None, str(error)
