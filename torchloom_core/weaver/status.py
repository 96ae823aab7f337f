"""Describe a running kernel for people: the live table and the knobs."""

import math

from torchloom_core.actions import kind_of, target_of
from torchloom_core.clock import SECOND_NS
from torchloom_core.config import Config
from torchloom_core.control import (
    FlightStatus,
    KnobTable,
    PluginStatus,
    Status,
    Waiting,
    WorkerStatus,
)
from torchloom_core.decisions import PolicyFailed, PredictorFailed
from torchloom_core.kernel import Kernel
from torchloom_core.plugins import ActivePlugins

_SHOW_GONE_S = 600.0


def describe(
    kernel: Kernel, config: Config, plugins: ActivePlugins, *, now_ns: int, malformed: int, log: str
) -> Status:
    """Return the run at this moment; ``log`` is where the trajectory lies."""
    return Status(
        run=config.run.name,
        epoch=kernel.ledger.epoch,
        ts_ns=now_ns,
        stopped=kernel.operations.stopped,
        dry_run=config.arbiter.dry_run,
        ticks=kernel.ticks,
        malformed=malformed,
        workers=tuple(_workers(kernel, config, plugins, now_ns)),
        flights=tuple(
            FlightStatus(
                id=command_id,
                worker=flight.command.worker,
                verb=str(flight.command.do.__struct_config__.tag),
                status=flight.status,
                age_s=(now_ns - flight.command.issued_ns) / SECOND_NS,
            )
            for command_id, flight in kernel.ledger.flights.items()
        ),
        plugins=tuple(_plugins(kernel, plugins)),
        waiting=tuple(
            Waiting(
                proposal=proposal_id,
                policy=candidate.proposed.policy,
                action=kind_of(candidate.proposed.proposal.action),
                target=target_of(candidate.proposed.proposal.action),
                reason=candidate.proposed.proposal.reason,
            )
            for proposal_id, candidate in kernel.arbiter.waiting.items()
        ),
        cordoned=tuple(sorted(kernel.fleet.cordons.nodes)),
        cordoned_until_ns=dict(sorted(kernel.fleet.cordons.until_ns.items())),
        trajectory=log,
    )


def describe_knobs(kernel: Kernel) -> KnobTable:
    """Return every knob: what it is, what it should be, and what it is where."""
    fleet = kernel.fleet
    return KnobTable(
        specs=tuple(fleet.knob_specs().values()),
        desired=kernel.control().desired,
        values={
            hello.worker: fleet.knobs[row]
            for row, hello in enumerate(fleet.hello)
            if fleet.state[row] != "gone"
        },
    )


def _workers(
    kernel: Kernel, config: Config, plugins: ActivePlugins, now_ns: int
) -> list[WorkerStatus]:
    forecasts = kernel.forecasts.newest
    view = kernel.fleet.view(now_ns, forecasts)
    kept = sorted({need.metric for need in plugins.needs}.union(config.weaver.show))
    metrics = {name: view.latest(name) for name in kept}
    hazards = {name: view.hazard(name) for name in forecasts}
    return [
        WorkerStatus(
            worker=worker,
            group=view.group[row],
            node=view.node[row],
            rack=view.rack[row],
            state=view.state[row],
            step=int(view.step[row]),
            incarnation=kernel.fleet.hello[row].incarnation,
            heartbeat_age_s=float(view.heartbeat_age_s[row]),
            progress_age_s=float(view.progress_age_s[row]),
            knobs=kernel.fleet.knobs[row],
            metrics={n: float(v[row]) for n, v in metrics.items() if not math.isnan(v[row])},
            hazards={n: float(h[row]) for n, h in hazards.items() if not math.isnan(h[row])},
        )
        for row, worker in enumerate(view.workers)
        if view.state[row] != "gone" or view.heartbeat_age_s[row] < _SHOW_GONE_S
    ]


def _plugins(kernel: Kernel, plugins: ActivePlugins) -> list[PluginStatus]:
    rows = []
    for active in plugins.policies:
        failure = kernel.host.quarantined.get(active.name)
        state = "quarantined" if failure else active.mode
        detail = f"{failure.rule}: {failure.detail}" if failure else ""
        rows.append(PluginStatus(name=active.name, kind="policy", state=state, detail=detail))
    for name in plugins.predictors:
        broken = kernel.forecasts.failed.get(name)
        state = "quarantined" if broken else "act"
        detail = f"{broken.rule}: {broken.detail}" if broken else ""
        rows.append(PluginStatus(name=name, kind="predictor", state=state, detail=detail))
    for failed in plugins.failed:
        kind, name = "predictor", ""
        match failed:
            case PolicyFailed(policy=name):
                kind = "policy"
            case PredictorFailed(predictor=name):
                pass
        rows.append(PluginStatus(name=name, kind=kind, state="quarantined", detail=failed.detail))
    return rows
