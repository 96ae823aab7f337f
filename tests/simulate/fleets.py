"""Small jobs and hits for the tests of the fleet model; times in whole seconds."""

from experiments.formulas.monte_carlo import NO_TIER, fleet, names, plain_job
from torchloom_core.lab.simulate.scenario import Hit, Tier

S = 10**9
GPUS = 8
"""GPUs of a node."""

__all__ = [
    "GPUS",
    "NO_TIER",
    "S",
    "Tier",
    "fleet",
    "gpu_s",
    "job_fault",
    "kinds",
    "lost_node",
    "names",
    "plain_job",
    "states",
    "stepping",
]


NEVER = Tier(save_s=7.0, restart_s=15.0, interval_s=float("inf"))


def stepping(groups=2, durable=NEVER, **changes):
    """Return a job with recovery per step, with a step of 10 s."""
    return plain_job(groups=groups, recovery="per_step", step_s=10.0, durable=durable, **changes)


def job_fault(ts_s, name=""):
    return Hit(
        id=name or f"job-{ts_s}", ts_ns=round(ts_s * S), nodes=(), follows="job", repair_ns=0
    )


def lost_node(ts_s, *nodes, repair_s=1000, name=""):
    return Hit(
        id=name or f"{'-'.join(nodes)}-{ts_s}",
        ts_ns=round(ts_s * S),
        nodes=nodes,
        follows="component",
        repair_ns=round(repair_s * S),
    )


def gpu_s(result):
    """Return the buckets that are not empty, in GPU-seconds."""
    return {name: value / S for name, value in result.buckets.items() if value}


def kinds(fleet_events, *wanted):
    return [(one.ts_ns / S, one.kind, one.group) for one in fleet_events if one.kind in wanted]


def states(model):
    return {one.worker: one.state for one in model.workers()}
