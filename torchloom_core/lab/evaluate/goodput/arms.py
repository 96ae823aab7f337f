"""The arms of a study: variants of the same job under the same faults.

An arm sets the job's recovery, checkpoint interval, standbys and plugins; :mod:`.job` turns it into
the inputs of the fleet model and the kernel.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from torchloom_core.config.schema import Evaluate
from torchloom_core.lab.evaluate.arm_results import ArmKind

HOUR_S = 3600.0
FORECAST_POLICY = "failure_forecast"
"""The policy that acts on the forecasts of the built-in arms, at the usual prices."""
INTERVAL_POLICY = "checkpoint_interval"
MEMBERSHIP_POLICY = "membership"

Interval = float | Literal["base", "first", "young", "daly", "never"]
"""Seconds; ``base``: the config's, or Daly's; ``first``: the initial one of a run whose policy sets
the interval."""

Foresight = Literal["", "no_failures", "random", "always", "oracle", "clairvoyant"]
"""Knowledge of the future that no real policy has."""


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run the job.

    An absent ``recovery`` is the config's, as are absent ``standbys``: warm groups, or ``all`` that
    standbys and spares allow. Remaining nodes are cold spares, so that every arm pays for the same
    nodes. ``policies`` and ``predictors`` are as in the config; without policies there are no
    ticks.
    """

    name: str
    kind: ArmKind
    what: str
    needs_forecast: bool = False
    interval: Interval = "base"
    recovery: Literal["restart", "per_step"] | None = None
    standbys: int | Literal["all"] | None = None
    foresight: Foresight = ""
    alarms_per_node_day: float = 0.0
    policies: dict[str, dict[str, Any]] = {}
    predictors: dict[str, dict[str, Any]] = {}

    @property
    def grows(self) -> bool:
        """Whether its run may have more groups than the job is planned for."""
        return MEMBERSHIP_POLICY in self.policies


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
        *(_static(name, seconds) for name, seconds in _STATIC.items()),
        Arm(
            name="young",
            kind="baseline",
            what="Young's checkpoint interval for the actual failure rate",
            interval="young",
        ),
        Arm(
            name="daly",
            kind="baseline",
            what="Daly's checkpoint interval for the actual failure rate",
            interval="daly",
        ),
        Arm(
            name="restart",
            kind="baseline",
            what="any failure stops all groups, no warm standby, as with torchrun",
            recovery="restart",
            standbys=0,
        ),
        Arm(
            name="per_step",
            kind="baseline",
            what="the other groups go on and one step is lost, as with torchft",
            recovery="per_step",
        ),
        Arm(
            name="warm_standby",
            kind="baseline",
            what="any failure stops all groups, a warm standby replaces the lost group",
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
            Arm(
                name="daly_online",
                kind="baseline",
                what="Daly's interval for the failures so far, by the policy checkpoint_interval",
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


def elastic() -> Arm:
    """Return the arm that trains on all healthy nodes."""
    return Arm(
        name="elastic",
        kind="baseline",
        what="recovery per step; the policy membership admits standbys and spares to training",
        recovery="per_step",
        standbys="all",
        policies={MEMBERSHIP_POLICY: {}},
    )


def without_policies(arm: Arm) -> Arm:
    """Return the same job without policies."""
    return Arm(
        name=arm.name,
        kind="baseline",
        what="the same job without policies",
        interval=arm.interval,
        recovery=arm.recovery,
        standbys=arm.standbys,
    )


def random_alarms(alarms_per_node_day: float) -> Arm:
    """Return the baseline with random alarms, as frequent as the candidates'."""
    what = f"{alarms_per_node_day:.4g} alarms per node-day at random"
    arm = _scripted("random_alarms", "baseline", "random", what)
    return msgspec.structs.replace(arm, alarms_per_node_day=alarms_per_node_day)


def _static(name: str, seconds: float) -> Arm:
    hours = seconds / HOUR_S
    return Arm(
        name=name,
        kind="baseline",
        what=f"a checkpoint after every {hours:g} h of work",
        interval=seconds,
    )


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


_STATIC = {"static_30min": 0.5 * HOUR_S, "static_1h": HOUR_S, "static_3h": 3 * HOUR_S}

SCRIPTED = "scripted"
"""Name of the predictor with scripted forecasts, such as the oracle's."""
