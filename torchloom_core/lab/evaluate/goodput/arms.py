"""The arms of a study: variants of the same job under the same faults.

An arm sets the job's recovery, checkpoint interval, standbys and plugins; :mod:`.job` turns it into
the inputs of the fleet model and the kernel.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from torchloom_core.config.schema import Evaluate
from torchloom_core.lab.evaluate.arm import MEMBERSHIP_POLICY, Arm, ArmKind, Foresight

HOUR_S = 3600.0
FORECAST_POLICY = "failure_forecast"
"""The policy that acts on the forecasts of the built-in arms, at the usual prices."""
INTERVAL_POLICY = "checkpoint_interval"


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
    return frozenset(arm.name for arm in (*arms, random_alarms(0.0)))


_STATIC_H = {"static_30min": 0.5, "static_1h": 1.0, "static_3h": 3.0}

SCRIPTED = "scripted"
"""Name of the predictor with scripted forecasts, such as the oracle's."""
