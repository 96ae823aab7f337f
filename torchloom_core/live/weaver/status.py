"""The status of a running kernel for people: the live table and the knobs."""

from collections.abc import Iterable, Iterator
from heapq import nlargest
from itertools import islice
from typing import TypeVar

import msgspec
import numpy as np

from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.plain_text import plain_line
from torchloom_core.floor.suggest import listed
from torchloom_core.interface.api import Policy, Predictor
from torchloom_core.interface.needs import windows_s
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.live.kernel.actions.kinds import summary_of, target_of
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.kernel.plugins.host import ActivePlugins
from torchloom_core.live.trajectory.summaries import summarise
from torchloom_core.live.weaver.worker_rows import SHOW_GONE_S, WorkerRows
from torchloom_core.wire.actions import name_of
from torchloom_core.wire.decisions import PolicyFailed
from torchloom_core.wire.messages import KnobSpec
from torchloom_core.wire.operator import SUMMARISED, KnobTable, Page
from torchloom_core.wire.placement import TRAINER
from torchloom_core.wire.status import (
    AtRisk,
    CrashLoop,
    FlightStatus,
    PluginStatus,
    Status,
    Waiting,
    WorkerStatus,
)
from torchloom_core.wire.steering import name_of_replica

_LISTED = 1000
_IN_SUMMARY = 20
_REASON_CHARACTERS = 300
_AT_RISK = 20
_STATUS_CHARACTERS = 200

_PAGE_BYTES = 500_000
"""Half of a message; the other half is for what is not per worker."""

_SPECS_BYTES = 400_000
_FIRST = Page()


def describe(
    kernel: Kernel,
    config: Config,
    plugins: ActivePlugins,
    *,
    now_ns: int,
    malformed: int,
    log: str,
    recording: str = "",
    broker_full: str = "",
    leader: str = "",
    standbys: tuple[str, ...] = (),
    page: Page = _FIRST,
) -> Status:
    """Return a page of the run's status, as much as fits a message; ``log`` is its record."""
    summary = page.summary and len(kernel.fleet.hello) > SUMMARISED
    workers: list[WorkerStatus] = []
    more = False
    if page.workers or page.summary:
        rows = WorkerRows(kernel, config, plugins, now_ns)
    if page.workers and not summary:
        workers, more = _fitting(rows.page(page), most=page.limit)
    status = Status(
        run=config.run.name,
        epoch=kernel.commands.epoch,
        ts_ns=now_ns,
        stopped=kernel.run.switch.stopped,
        dry_run=config.arbiter.dry_run,
        ticks=kernel.ticks,
        malformed=malformed,
        workers=tuple(workers),
        more=more,
        flights_in_all=len(kernel.commands.flights),
        trajectory=log,
        recording=recording,
        broker_full=broker_full,
        leader=leader,
        standbys=standbys,
        lighthouse="" if page.after else _lighthouse(kernel),
        controller=kernel.requests.control_lease.holder(now_ns),
        control_until_ns=kernel.requests.control_lease.until_ns(now_ns),
        step_time_s=kernel.run.guards.newest("step_time_s"),
    )
    if page.after:
        return status
    return msgspec.structs.replace(
        status,
        summary=summary,
        counts=rows.counts() if page.summary else {},
        groups=len(kernel.run.training_groups()),
        unusual=tuple(rows.unusual()) if summary else (),
        flights=tuple(
            FlightStatus(
                id=command_id,
                worker=flight.command.worker,
                incarnation=flight.command.incarnation,
                cause=flight.command.cause,
                verb=str(flight.command.do.__struct_config__.tag),
                status=flight.status,
                age_s=(now_ns - flight.command.issued_ns) / SECOND_NS,
            )
            for command_id, flight in islice(
                kernel.commands.flights.items(), _IN_SUMMARY if summary else _LISTED
            )
        ),
        plugins=tuple(_plugins(kernel, plugins, now_ns)),
        waiting=tuple(
            Waiting(
                proposal=proposal_id,
                policy=candidate.proposed.policy,
                action=name_of(candidate.proposed.proposal.action),
                target=target_of(candidate.proposed.proposal.action),
                summary=summary_of(msgspec.to_builtins(candidate.proposed.proposal.action)),
                reason=candidate.proposed.proposal.reason[:_REASON_CHARACTERS],
                gain_gpu_s=candidate.proposed.proposal.gain_gpu_s,
                cost_gpu_s=candidate.proposed.proposal.cost_gpu_s,
                confidence=candidate.proposed.proposal.confidence,
                until_ns=candidate.ts_ns + round(candidate.proposed.proposal.expires_s * SECOND_NS),
            )
            for proposal_id, candidate in islice(kernel.arbiter.waiting.items(), _LISTED)
        ),
        knobs_waiting=tuple(kernel.run.desired.waiting[:_LISTED]),
        crash_loops=tuple(islice(_crash_loops(kernel, now_ns), _LISTED)),
        at_risk=tuple(_at_risk(kernel)),
        programs=kernel.fleet.programs.status(),
        suspensions=tuple(kernel.run.suspensions.table.values()),
        cordoned=tuple(sorted(kernel.fleet.cordons.nodes)),
        cordoned_until_ns=dict(sorted(kernel.fleet.cordons.until_ns.items())),
    )


def _crash_loops(kernel: Kernel, now_ns: int) -> Iterator[CrashLoop]:
    fleet = kernel.fleet
    for row, loop in fleet.crash_loops.of.items():
        if not loop.gave_up or now_ns - fleet.last_seen_ns(row) < SHOW_GONE_S * SECOND_NS:
            yield loop


def _at_risk(kernel: Kernel) -> Iterator[AtRisk]:
    for name, forecast in kernel.forecasts.newest.items():
        worst = nlargest(_AT_RISK, forecast.hazard.items(), key=lambda item: item[1])
        for worker, hazard in worst:
            if hazard > 0:
                yield AtRisk(
                    worker=worker,
                    predictor=name,
                    hazard=hazard,
                    horizon_s=forecast.horizon_s,
                    why=forecast.why.get(worker, "")[:_REASON_CHARACTERS],
                )


def _lighthouse(kernel: Kernel) -> str:
    """Return in a line what the lighthouse sees of groups that live on; empty without one."""
    view = kernel.run.steering.view
    if view is None:
        return ""
    fleet, quorums = kernel.fleet, kernel.fleet.quorums
    rows = range(len(fleet.hello))
    over = quorums.replicas(row for row in rows if fleet.is_over(row))
    living = quorums.replicas(row for row in rows if not fleet.is_over(row))
    living |= {*view.members}.difference(view.silent, view.lost, view.aside)
    names = {name_of_replica(replica) for replica in living}

    def still(replicas: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(one for one in replicas if one in living or name_of_replica(one) not in names)

    shown = msgspec.structs.replace(
        view,
        failed=still(view.failed),
        silent=tuple(one for one in still(view.silent) if one not in over),
        lost=still(view.lost),
        aside=tuple(one for one in still(view.aside) if one not in over),
    )
    return summarise("lighthouse", msgspec.to_builtins(shown))


def describe_knobs(kernel: Kernel, page: Page = _FIRST) -> KnobTable:
    """Return a page of the knobs: specifications, desired values, and values by worker."""
    fleet = kernel.fleet
    first = fleet.row_of.get(page.after, -1) + 1
    own = (
        (hello.worker, fleet.knobs[row])
        for row, hello in islice(enumerate(fleet.hello), first, None)
        if page.workers and fleet.state[row] != "gone"
    )
    some, more = _fitting(own)
    values = dict(some)
    roles = {worker: fleet.hello[fleet.row_of[worker]].role for worker in values}
    roles = {worker: role for worker, role in roles.items() if role != TRAINER}
    if page.after:
        return KnobTable(values=values, more=more, roles=roles)
    waiting = fleet.standing.rows_in("standby")
    tried = {knob for row in waiting for knob in fleet.hello[row].tries}
    by_use = fleet.knob_specs_by_use()
    specs, _ = _fitting(by_use, _SPECS_BYTES)
    return KnobTable(
        specs=tuple(specs),
        left_out=len(by_use) - len(specs),
        desired=kernel.run.desired.snapshot(),
        values=values,
        more=more,
        tried=tuple(spec.name for spec in specs if spec.name in tried),
        of_role=_specs_by_role(fleet),
        roles=roles,
    )


def _specs_by_role(fleet: FleetState) -> dict[str, tuple[KnobSpec, ...]]:
    """Return the specifications of each role, as many as fit; none if the run has one role."""
    roles = fleet.roles
    each = _SPECS_BYTES // max(len(roles), 1)
    specs = {role: tuple(_fitting(fleet.specs_of(role).values(), each)[0]) for role in roles}
    return specs if len(roles) > 1 else {}


_T = TypeVar("_T")


def _fitting(
    rows: Iterable[_T], most_bytes: int = _PAGE_BYTES, most: int = 0
) -> tuple[list[_T], bool]:
    """Return the rows that fit a message, ``most`` if not 0, and whether there are more."""
    some: list[_T] = []
    size = 0
    for row in rows:
        size += len(msgspec.json.encode(row))
        if some and (size > most_bytes or len(some) == most):
            return some, True
        some.append(row)
    return some, False


def _status(policy: Policy) -> str:
    """Return a policy's attribute ``status`` as one line; empty if it has none."""
    try:
        status = getattr(policy, "status", "")
    except Exception:  # noqa: BLE001 - foreign code
        return ""
    return plain_line(status, _STATUS_CHARACTERS) if isinstance(status, str) else ""


def _no_forecast(kernel: Kernel, name: str, predictor: Predictor, now_ns: int) -> str:
    """Return that the predictor forecasts for no worker, and the metrics that are missing."""
    newest = kernel.forecasts.newest.get(name)
    if newest is not None and newest.hazard:
        return ""
    view = kernel.fleet.view(now_ns, {})
    needed = windows_s(predictor.needs)
    missing = [metric for metric in needed if np.isnan(view.latest(metric)).all()]
    return f"no forecast: no worker reports {listed(missing)}" if missing else "no forecast yet"


def _plugins(kernel: Kernel, plugins: ActivePlugins, now_ns: int) -> list[PluginStatus]:
    rows = []
    for active in plugins.policies:
        failure = kernel.host.quarantined.get(active.name)
        state = "quarantined" if failure else active.mode
        detail = active.dry_run_reason or _status(active.policy)
        if failure:
            detail = f"{failure.rule}: {failure.detail}"
        rows.append(PluginStatus(name=active.name, kind="policy", state=state, detail=detail))
    for name, predictor in plugins.predictors.items():
        broken = kernel.forecasts.failed.get(name)
        state = "quarantined" if broken else "act"
        if broken:
            detail = f"{broken.rule}: {broken.detail}"
        else:
            detail = _no_forecast(kernel, name, predictor, now_ns)
        rows.append(PluginStatus(name=name, kind="predictor", state=state, detail=detail))
    for failed in plugins.failed:
        if isinstance(failed, PolicyFailed):
            kind, name = "policy", failed.policy
        else:
            kind, name = "predictor", failed.predictor
        rows.append(PluginStatus(name=name, kind=kind, state="quarantined", detail=failed.detail))
    return rows
