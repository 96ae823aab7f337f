"""The job of a backtest: the inputs of the fleet model and the kernel for one arm."""

import math
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from torchloom_core.config.evaluation import Evaluate
from torchloom_core.config.schema import Config, Costs
from torchloom_core.floor.errors import TraceError
from torchloom_core.interface.checkpointing import daly_s, young_s
from torchloom_core.lab.evaluate.arm import Arm
from torchloom_core.lab.simulate.scenario import JobSpec, Tier
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Job
from torchloom_core.wire.placement import TRAINER

FIRST_INTERVAL_S = 3600.0
"""Initial checkpoint interval, until a policy has measured the failure rate, seconds."""

INSURANCE_S = 10_800.0
"""Interval of durable checkpoints where groups recover from each other, seconds."""

STALLS = ("join_stall_s", "leave_stall_s", "kill_stall_s")
"""Keys of ``[evaluate]`` for the stalls of the other groups."""

_OMITTED_IF_0 = (*STALLS, "state_bytes")
"""Keys that the report omits if they are 0."""

STALE_TICKS = 3
"""Ticks without a report after which a worker or a metric is stale."""


_Section = TypeVar("_Section", Evaluate, Costs)


def of_trace(config: Config, bundle: Bundle) -> Config:
    """Return the config with the job of the trace, unless ``[evaluate]`` sets another.

    It is the largest job of ``jobs.jsonl``. Keys that differ from their defaults stay.
    """
    if not bundle.jobs():
        return config
    job = max(bundle.jobs(), key=lambda job: (_gpus(job), job.id))
    shape = ("groups", "nodes_per_group", "gpus_per_node")
    found = {key: getattr(job, key) for key in (*shape, "step_s") if getattr(job, key)}
    if any(getattr(config.evaluate, key) != getattr(Evaluate(), key) for key in shape):
        found = {key: value for key, value in found.items() if key not in shape}
    evaluate = _filled(config.evaluate, Evaluate(), found)
    costs = {"checkpoint_s": job.checkpoint_s, "restart_s": job.restart_s}
    found_costs = {key: value for key, value in costs.items() if value > 0}
    return replace(config, evaluate=evaluate, costs=_filled(config.costs, Costs(), found_costs))


def _gpus(job: Job) -> int:
    return job.groups * job.nodes_per_group * job.gpus_per_node


def _filled(given: _Section, default: _Section, found: dict[str, float]) -> _Section:
    return replace(
        given, **{k: v for k, v in found.items() if getattr(given, k) == getattr(default, k)}
    )


def paid_nodes(evaluate: Evaluate) -> int:
    """Return the number of nodes that every arm pays for."""
    return (evaluate.groups + evaluate.standbys) * evaluate.nodes_per_group + evaluate.spares


def reported_keys(section: Evaluate | Costs) -> dict[str, Any]:
    """Return the keys of a section for the report, without optional ones that are 0."""
    keys: dict[str, Any] = msgspec.to_builtins(section)
    keys.pop("allreduce", None)
    return {key: value for key, value in keys.items() if value or key not in _OMITTED_IF_0}


def standbys_of(arm: Arm, evaluate: Evaluate) -> int:
    """Return the number of standby groups of an arm at the start."""
    if arm.standbys == "all":
        return evaluate.standbys + evaluate.spares // evaluate.nodes_per_group
    return evaluate.standbys if arm.standbys is None else arm.standbys


def job_spec(
    arm: Arm, config: Config, mtbf_s: float, several_nodes_mtbf_s: float = math.inf
) -> JobSpec:
    """Return the job as the arm runs it; TraceError if it needs more standby nodes than exist.

    The mean times are those between all failures, and between those that lose several nodes.
    """
    evaluate, costs = config.evaluate, config.costs
    recovery = arm.recovery or evaluate.recovery
    standbys = standbys_of(arm, evaluate)
    spares = evaluate.spares + (evaluate.standbys - standbys) * evaluate.nodes_per_group
    if spares < 0:
        raise TraceError(
            f"arm {arm.name}: need {standbys * evaluate.nodes_per_group} standby nodes, was "
            f"{evaluate.standbys * evaluate.nodes_per_group + evaluate.spares}"
        )
    return JobSpec(
        groups=evaluate.groups,
        nodes_per_group=evaluate.nodes_per_group,
        gpus_per_node=evaluate.gpus_per_node,
        standbys=standbys,
        spares=spares,
        recovery=recovery,
        step_s=evaluate.step_s,
        durable=Tier(
            save_s=_save_s(arm, config),
            restart_s=costs.restart_s,
            interval_s=_interval_s(arm, config, mtbf_s, several_nodes_mtbf_s),
        ),
        local=_local(arm, config, mtbf_s, several_nodes_mtbf_s),
        local_has_copies=arm.memory_save_s > 0,
        proactive_save_s=evaluate.proactive_checkpoint_s,
        detect_s=costs.detect_s,
        migrate_s=costs.migrate_s,
        rejoin_s=evaluate.rejoin_s,
        provision_s=evaluate.provision_s,
        warm_up_s=evaluate.warm_up_s,
        inspect_s=evaluate.inspect_s,
        min_groups=max(1, config.min_groups(TRAINER)),
        join_stall_s=evaluate.join_stall_s,
        leave_stall_s=evaluate.leave_stall_s,
        kill_stall_s=evaluate.kill_stall_s,
    )


def _save_s(arm: Arm, config: Config) -> float:
    return config.costs.checkpoint_s if arm.save_s is None else arm.save_s


def _local(arm: Arm, config: Config, mtbf_s: float, several_nodes_mtbf_s: float) -> Tier | None:
    """Return the checkpoints that are not durable: the arm's in memory, else the config's."""
    evaluate, save_s = config.evaluate, arm.memory_save_s
    if save_s:
        one_node_per_s = 1.0 / mtbf_s - 1.0 / several_nodes_mtbf_s
        one_node_mtbf_s = 1.0 / one_node_per_s if one_node_per_s > 0 else several_nodes_mtbf_s
        return Tier(
            save_s=save_s,
            restart_s=config.costs.restart_s,
            interval_s=max(daly_s(save_s=save_s, mtbf_s=one_node_mtbf_s), evaluate.step_s),
        )
    if evaluate.local_checkpoint_s <= 0:
        return None
    return Tier(
        save_s=evaluate.local_checkpoint_s,
        restart_s=evaluate.local_restart_s,
        interval_s=evaluate.local_interval_s,
    )


def _interval_s(arm: Arm, config: Config, mtbf_s: float, several_nodes_mtbf_s: float) -> float:
    save_s, given_s = _save_s(arm, config), config.evaluate.checkpoint_interval_s
    recovery = arm.recovery or config.evaluate.recovery
    match arm.interval:
        case "never":
            return math.inf
        case "first":
            return given_s or FIRST_INTERVAL_S
        case "base" if given_s > 0:
            return given_s
        case "base" if recovery == "per_step":
            return INSURANCE_S
        case "young":
            interval_s = young_s(save_s=save_s, mtbf_s=mtbf_s)
        case "base" | "daly":
            interval_s = daly_s(save_s=save_s, mtbf_s=mtbf_s)
        case "tiers":
            interval_s = daly_s(save_s=save_s, mtbf_s=several_nodes_mtbf_s)
        case seconds:
            return float(seconds)
    # At least one step: with free checkpoints the optimum would be 0.
    return max(interval_s, config.evaluate.step_s)


def kernel_config(arm: Arm, config: Config, spec: JobSpec) -> Config:
    """Return the kernel's config for an arm.

    It is the config file's, with the backtest's tick and with prices derived from the job. In
    ``restart`` mode, unsaved work is half a checkpoint interval on average, and all groups wait for
    the provisioning of a spare. In ``per_step`` mode, one step is lost, no other group waits, and
    the group is away until it has rejoined. Inspection and repair times are the fleet model's.
    """
    costs = replace(
        config.costs,
        gpus_per_worker=float(spec.gpus_per_node),
        inspect_s=spec.inspect_s,
        repair_s=config.evaluate.repair_s,
    )
    if spec.recovery == "restart":
        unsaved_s = spec.durable.interval_s / 2
        costs = replace(
            costs,
            unsaved_s=unsaved_s,
            replace_s=spec.provision_s,
            others_wait_s=spec.provision_s,
        )
    else:
        costs = replace(
            costs,
            detect_s=0.0,
            restart_s=0.0,
            unsaved_s=spec.step_s,
            replace_s=spec.rejoin_s,
            others_wait_s=0.0,
        )
    return arm.activated(replace(ticking(config), costs=costs))


def ticking(config: Config) -> Config:
    """Return the config with the tick of ``[evaluate]``, and timeouts of at least 3 ticks."""
    tick_s = config.evaluate.tick_s
    weaver = replace(
        config.weaver,
        tick_s=tick_s,
        stale_after_s=max(config.weaver.stale_after_s, STALE_TICKS * tick_s),
        command_deadline_s=max(config.weaver.command_deadline_s, STALE_TICKS * tick_s),
        show=(),
    )
    return replace(config, weaver=weaver)
