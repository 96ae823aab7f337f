"""The arms of a study: variants of the same job under the same faults.

An arm sets the job's recovery, checkpoint interval, standbys and plugins; :mod:`.job` turns it into
the inputs of the fleet model and the kernel.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from torchloom_core.config.evaluation import Evaluate
from torchloom_core.lab.evaluate.arm import MEMBERSHIP_POLICY, Arm, ArmKind, Foresight
from torchloom_core.lab.evaluate.measured_costs import DURABLE, MeasuredCosts
from torchloom_core.wire.checkpoint_tiers import MEMORY

HOUR_S = 3600.0
FORECAST_POLICY = "failure_forecast"
"""The policy that acts on the forecasts of the built-in arms, at the usual prices."""
INTERVAL_POLICY = "checkpoint_interval"
ALL_TIERS = "all_tiers"


def baselines(installed: Mapping[str, type[Any]], evaluate: Evaluate) -> list[Arm]:
    """Return all baselines and oracles, except random alarms, whose policies are installed."""
    arms = [
        Arm(
            name="no_failures",
            kind="bound",
            what="no failures and no checkpoints: an upper bound with the given spares",
            interval="never",
            foresight="no_failures",
        ),
        *(
            baseline(name, f"a checkpoint after every {hours:g} h of work", interval=HOUR_S * hours)
            for name, hours in _STATIC_H.items()
        ),
        baseline(
            "young", "Young's checkpoint interval for the actual failure rate", interval="young"
        ),
        baseline("daly", "Daly's checkpoint interval for the actual failure rate", interval="daly"),
        baseline(
            "restart",
            "any failure stops all groups, no warm standby, as with torchrun",
            recovery="restart",
            standbys=0,
        ),
        baseline(
            "per_step",
            "the other groups go on and one step is lost, as with torchft",
            recovery="per_step",
        ),
        baseline(
            "warm_standby",
            "any failure stops all groups, a warm standby replaces the lost group",
            recovery="restart",
            standbys=max(1, evaluate.standbys),
        ),
        Arm(
            name="clairvoyant",
            kind="oracle",
            what="knows the time of each failure: migrates or saves a checkpoint just before it",
            needs_forecast=True,
            interval="never",
            foresight="clairvoyant",
        ),
    ]
    if INTERVAL_POLICY in installed:
        arms.append(
            baseline(
                "daly_online",
                "Daly's interval for the failures so far, by the policy checkpoint_interval",
                interval="first",
                policies={INTERVAL_POLICY: {}},
            )
        )
    if MEMBERSHIP_POLICY in installed and evaluate.recovery == "per_step":
        arms.append(elastic())
    if FORECAST_POLICY in installed:
        arms += [
            _scripted(
                "always_alarm", "baseline", "always", "an alarm for every worker at all times"
            ),
            _scripted("oracle", "oracle", "oracle", "a perfect forecast, one horizon ahead"),
        ]
    return arms


def tier_arms(measured: MeasuredCosts) -> list[Arm]:
    """Return an arm for each tier whose cost was measured, and one for memory with a durable one.

    The fleet model has two levels: of two durable tiers, the one that saves more often counts.
    """
    costs = {name: cost.felt_s for name, cost in measured.tiers.items() if cost.felt_s > 0}
    memory_s = costs.get(MEMORY, 0.0)
    durable = [name for name in DURABLE if name in costs]
    arms = [
        baseline(
            name,
            f"checkpoints in the tier {name} alone, {costs[name]:.3g} s each, at Daly's interval "
            f"for the actual failure rate",
            interval="daly",
            save_s=costs[name],
        )
        for name in durable
    ]
    if memory_s:
        arms.insert(
            0,
            baseline(
                MEMORY,
                f"checkpoints in the memory of two nodes alone, {memory_s:.3g} s each, at Daly's "
                f"interval for failures of one node; one of several nodes loses all work",
                interval="never",
                memory_save_s=memory_s,
            ),
        )
    if memory_s and durable:
        arms.append(
            baseline(
                ALL_TIERS,
                f"checkpoints in the memory of two nodes and in the tier {durable[0]}, at the "
                f"two-level optimum for the actual rates of failures of one and of several nodes",
                interval="tiers",
                save_s=costs[durable[0]],
                memory_save_s=memory_s,
            )
        )
    return arms


def baseline(name: str, what: str, **fields: Any) -> Arm:
    """Return a baseline; ``fields`` are those of :class:`Arm`."""
    return Arm(name=name, kind="baseline", what=what, **fields)


def elastic() -> Arm:
    """Return the arm that trains on all healthy nodes."""
    return baseline(
        "elastic",
        "recovery per step; the policy membership admits standbys and spares to training",
        recovery="per_step",
        standbys="all",
        policies={MEMBERSHIP_POLICY: {}},
    )


def without_policies(arm: Arm) -> Arm:
    """Return the same job without policies."""
    return baseline(
        arm.name,
        "the same job without policies",
        interval=arm.interval,
        recovery=arm.recovery,
        standbys=arm.standbys,
    )


def random_alarms(alarms_per_node_day: float) -> Arm:
    """Return the baseline with random alarms, as frequent as the candidates'."""
    what = f"{alarms_per_node_day:.4g} alarms per node-day at random"
    arm = _scripted("random_alarms", "baseline", "random", what)
    return msgspec.structs.replace(arm, alarms_per_node_day=alarms_per_node_day)


def _scripted(name: str, kind: ArmKind, foresight: Foresight, what: str) -> Arm:
    return Arm(
        name=name,
        kind=kind,
        what=f"{what}; the policy failure_forecast acts on it",
        needs_forecast=True,
        foresight=foresight,
        policies={FORECAST_POLICY: {"predictor": SCRIPTED}},
    )


def names_taken() -> frozenset[str]:
    """Return the names of the built-in arms."""
    all_installed = dict.fromkeys((INTERVAL_POLICY, MEMBERSHIP_POLICY, FORECAST_POLICY), object)
    arms = baselines(all_installed, Evaluate(recovery="per_step"))
    tiers = (MEMORY, *DURABLE, ALL_TIERS)
    return frozenset((*tiers, *(arm.name for arm in (*arms, random_alarms(0.0)))))


_STATIC_H = {"static_30min": 0.5, "static_1h": 1.0, "static_3h": 3.0}

SCRIPTED = "scripted"
"""Name of the predictor with scripted forecasts, such as the oracle's."""
