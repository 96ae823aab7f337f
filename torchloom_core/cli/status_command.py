"""``torchloom status``: the run at this moment, or updated live."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from torchloom_core.cli.options import HERE, AsJson, Connection, Several
from torchloom_core.cli.output import console, print_json, span, warn
from torchloom_core.cli.weaver_client import fetch_status, open_client
from torchloom_core.cli.worker_table import summary_of, training_of, worker_table
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import RequestError
from torchloom_core.floor.plain_text import printable
from torchloom_core.floor.suggest import listed
from torchloom_core.live.trajectory.summaries import summarise
from torchloom_core.wire.operator import Page
from torchloom_core.wire.programs import ProgramStatus
from torchloom_core.wire.status import Status

if TYPE_CHECKING:
    from torchloom_core.live.transport import ControlClient

_LIMIT = 200


def status(
    *,
    watch: Annotated[bool, Parameter(alias="-w", negative="", show_default=False)] = False,
    every: Annotated[float, Parameter(validator=Number(gt=0))] = 1.0,
    metric: Several = (),
    workers: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    state: str = "",
    group: str = "",
    role: str = "",
    after: str = "",
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=1000))] = _LIMIT,
    all_workers: Annotated[bool, Parameter(name="--all", negative="", show_default=False)] = False,
    json: AsJson = False,
    connection: Connection = HERE,
) -> None:
    """Show the run's workers, knobs, failure probabilities, commands in progress and plugins.

    A run of more than 200 workers is summarised: how many are in which state, and the unusual ones.

    Parameters
    ----------
    watch
        Update until interrupted, also across restarts of the Weaver.
    every
        Interval between updates with --watch, seconds.
    metric
        Metric to show, may be repeated. Default: the first four.
    workers
        List the workers of a large run, a page of them.
    state
        List only workers in this state, as shown in the table: silent, failed, ...
    group, role
        List only workers of this replica group, of this role.
    after
        List only workers that registered after this one.
    limit
        How many workers to list at most.
    all_workers
        List all workers, however many there are.
    """
    lists = all_workers or workers or state or group or role or after or limit != _LIMIT
    most = 0 if all_workers else limit
    page = Page(state=state, group=group, role=role, after=after, limit=most)
    wanted = page if lists else Page(summary=True)
    asyncio.run(_show(connection, watch, every, metric, json, wanted))


async def _show(
    connection: Connection,
    watch: bool,
    every_s: float,
    metrics: tuple[str, ...],
    json: bool,
    wanted: Page,
) -> None:
    async with open_client(connection) as client:
        last = await fetch_status(client, wanted)
        if not watch:
            if json:
                print_json(last)
            else:
                console().print(render(last, metrics))
            return
        if json:
            print_json(last)
            last_error = ""
            async for now, error in _statuses(client, every_s, wanted):
                if now is not None:
                    print_json(now)
                elif not last_error:
                    warn(f"{error}; retrying")
                last_error = error
            return
        with Live(render(last, metrics), console=console(), auto_refresh=False) as live:
            async for now, error in _statuses(client, every_s, wanted):
                last = now or last
                live.update(render(last, metrics, error), refresh=True)


async def _statuses(
    client: "ControlClient", every_s: float, wanted: Page
) -> AsyncIterator[tuple[Status | None, str]]:
    """Yield the run's status and an empty text, or None and the error, for ever."""
    while True:
        await asyncio.sleep(every_s)
        try:
            yield await fetch_status(client, wanted), ""
        except RequestError as error:
            yield None, str(error)


def render(status: Status, metrics: Sequence[str] = (), error: str = "") -> RenderableType:
    """Return the tables of a status; ``error`` is why there is no newer one."""
    parts: list[RenderableType] = [_headline(status)]
    if error:
        parts.append(Panel(Text(f"{error}; this is the last known status"), style="red"))
    if status.stopped:
        text = "ACTIONS ARE STOPPED; run `torchloom actions resume` to allow them again"
        parts.append(Panel(Text(text), style="bold red"))
    if status.recording:
        parts.append(Panel(Text(f"recording is {status.recording}"), style="red"))
    if status.broker_full:
        text = f"the broker has no space: {status.broker_full} waits, no state is stored"
        parts.append(Panel(Text(text), style="red"))
    parts += [Text(printable(loop.text), style="bold red") for loop in status.crash_loops]
    if status.summary:
        parts += summary_of(status)
    rows = status.unusual if status.summary else status.workers
    parts.append(worker_table(rows, metrics))
    missing = [name for name in metrics if not any(name in row.metrics for row in rows)]
    if rows and missing:
        text = (
            f"no value of {listed(missing)}: the status has the metrics that an active plugin "
            "reads, and those of `show` under [weaver]"
        )
        parts.append(Text(text, style="yellow"))
    if status.more:
        last = printable(status.workers[-1].worker)
        parts.append(Text(f"there are more: --after {last} shows the next, --all all", "yellow"))
    for one in status.suspensions:
        text = summarise("suspension", msgspec.to_builtins(one))
        since = span((status.ts_ns - one.since_ns) / SECOND_NS)
        parts.append(Text(f"{printable(text)}, for {since}", style="yellow"))
    if status.cordoned:
        nodes = ", ".join(_cordon(node, status) for node in status.cordoned)
        parts.append(Text(f"cordoned nodes: {nodes}", style="yellow"))
    if status.waiting:
        parts.append(_waiting(status))
    if status.knobs_waiting:
        parts.append(_knobs_waiting(status))
    if status.flights:
        parts.append(_flights(status))
    parts += [_program(program) for program in status.programs]
    if status.plugins:
        parts.append(_plugins(status))
    if status.lighthouse:
        parts.append(Text(f"lighthouse: {status.lighthouse}"))
    if status.standbys:
        parts.append(Text(printable(f"leader: {status.leader}")))
        parts += [Text(printable(f"standby: {standby}")) for standby in status.standbys]
    if status.trajectory:
        parts.append(Text(f"trajectory: {status.trajectory}", style="dim"))
    return Group(*parts)


def _program(program: ProgramStatus) -> Text:
    """Return the generation of a program that is split over workers, and what is at risk."""
    outlook, role = program.outlook, printable(program.role)
    present = outlook.assignment
    if present is None:
        return Text(f"{role}: no generation yet, {outlook.waits_for} workers are missing", "yellow")
    parts = len(present.workers)
    text = Text(
        f"{role}: generation {present.generation} ({printable(present.why)}), {outlook.phase}, "
        f"{parts} workers with a part, {len(outlook.standbys)} standbys"
    )
    if single := present.single_copies():
        text.append(f"; one worker alone holds layers {listed([*map(str, single)])}", "bold red")
    if lost := [str(number) for number, held in enumerate(present.experts) if not held]:
        text.append(f"; experts {listed(lost)} are left out", "red")
    for worker, slower in outlook.slowness.items():
        text.append(f"; {printable(worker)} takes {slower:.1f} times as long", "yellow")
    if outlook.offer is not None:
        text.append(f"; offered: {printable(outlook.offer.why)}", "cyan")
    if not program.reachable:
        text.append("; the rendezvous cannot be reached: last known", "red")
    return text


def _cordon(node: str, status: Status) -> str:
    until_ns = status.cordoned_until_ns.get(node)
    if until_ns is None:
        return node
    return f"{node} for {span((until_ns - status.ts_ns) / SECOND_NS)}"


def _headline(status: Status) -> Text:
    text = Text.assemble(
        (f"run {status.run}", "bold"),
        f"  epoch {status.epoch}  tick {status.ticks}  {training_of(status)}",
    )
    if status.dry_run:
        text.append("  dry run: nothing is sent", "yellow")
    if status.malformed:
        text.append(f"  {status.malformed} malformed messages", "yellow")
    return text


def _waiting(status: Status) -> Table:
    table = Table("pending approval", "policy", "action", "reason", box=None)
    for w in status.waiting:
        table.add_row(*map(escape, (w.proposal, w.policy, w.summary, w.reason)))
    table.columns[0].style = "bold yellow"
    return table


def _knobs_waiting(status: Status) -> Text:
    values = ", ".join(
        f"{desired.knob} = {desired.value}{f' of {desired.worker}' if desired.worker else ''} "
        f"(set {span((status.ts_ns - desired.since_ns) / SECOND_NS)} ago)"
        for desired in status.knobs_waiting
    )
    text = (
        f"set in an earlier job, not applied: {printable(values)}; "
        "torchloom knob take applies it, torchloom knob drop discards it"
    )
    return Text(text, style="yellow")


def _flights(status: Status) -> Table:
    table = Table("command", "worker", "verb", "status", "age", box=None)
    for flight in status.flights:
        texts = (flight.id, flight.worker, flight.verb, flight.status)
        table.add_row(*map(escape, texts), span(flight.age_s))
    more = status.flights_in_all - len(status.flights)
    if more > 0:
        table.add_row(f"and {more} more")
    return table


def _plugins(status: Status) -> Table:
    table = Table("plugin", "kind", "state", "", box=None)
    for plugin in status.plugins:
        is_degraded = plugin.state == "dry_run" and plugin.detail
        style = "red" if plugin.state == "quarantined" else "yellow" if is_degraded else ""
        table.add_row(
            escape(plugin.name), plugin.kind, Text(plugin.state, style), escape(plugin.detail)
        )
    return table
