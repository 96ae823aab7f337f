"""The arms of a study: every way to run the same job through the same faults, and its sentence.

An arm says how the job is set up and who watches over it; :mod:`.job` makes of it what the fleet
model and the kernel are given.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from torchloom_core.config.schema import Evaluate
from torchloom_core.evaluate.arm_results import ArmKind

HOUR_S = 3600.0
FORECAST_POLICY = "failure_forecast"
"""The policy that every forecast of ours is acted on by, so that it pays the same prices."""
INTERVAL_POLICY = "checkpoint_interval"
MEMBERSHIP_POLICY = "membership"

Interval = float | Literal["base", "first", "young", "daly", "never"]
"""Seconds; ``base``: what the config says, or Daly's; ``first``: what a run begins with whose
policy sets the interval itself."""

Foresight = Literal["", "no_failures", "random", "always", "oracle", "clairvoyant"]
"""What an arm knows that nobody does: of the future, or that there is none."""


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run the job.

    Attributes
    ----------
    what : str
        One sentence for a person.
    recovery : "restart" or "per_step", optional
        Absent: what the config says.
    standbys : int or "all", optional
        Warm standby groups; absent: what the config says; ``all``: as many as the standbys and
        spares can make. What is left over are cold spares, so that every arm pays for the same
        nodes.
    alarms_per_node_day : float
        How often random alarms are given.
    policies, predictors : dict
        As in ``[policies]`` and ``[predictors]``; without policies nothing ticks.
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
    """Return every baseline and oracle of the method, but for random alarms.

    Parameters
    ----------
    installed : dict of str to type
        Policies by name: arms whose policy is missing are left out.
    evaluate : Evaluate
        The job of the scenario.
    """
    arms = [
        Arm(
            name="no_failures",
            kind="bound",
            what="nothing ever fails and nothing is saved: what the standbys and spares leave",
            interval="never",
            foresight="no_failures",
        ),
        *(_static(name, seconds) for name, seconds in _STATIC.items()),
        Arm(
            name="young",
            kind="baseline",
            what="Young's interval for the failures that came",
            interval="young",
        ),
        Arm(
            name="daly",
            kind="baseline",
            what="Daly's interval for the failures that came",
            interval="daly",
        ),
        Arm(
            name="restart",
            kind="baseline",
            what="any failure stops all, no standby is warm, as with torchrun",
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
            what="any failure stops all, a warm standby takes the lost group's place",
            recovery="restart",
            standbys=max(1, evaluate.standbys),
        ),
        Arm(
            name="clairvoyant",
            kind="oracle",
            what="knows each failure to the second: moves away just before it, or saves",
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
            _told(
                "always_alarm", "baseline", "always", "every worker is said to fail, all the time"
            ),
            _told("oracle", "oracle", "oracle", "each failure is told one horizon before it comes"),
        ]
    return arms


def elastic() -> Arm:
    """Return the run that has as many groups as there are healthy nodes."""
    return Arm(
        name="elastic",
        kind="baseline",
        what="per step, and what would stand by or be spare trains, by the policy membership",
        recovery="per_step",
        standbys="all",
        policies={MEMBERSHIP_POLICY: {}},
    )


def without_policies(arm: Arm) -> Arm:
    """Return the same job with nobody watching over it."""
    return Arm(
        name=arm.name,
        kind="baseline",
        what="the same job without policies",
        interval=arm.interval,
        recovery=arm.recovery,
        standbys=arm.standbys,
    )


def random_alarms(alarms_per_node_day: float) -> Arm:
    """Return the baseline that cries as often as the candidates do, at random."""
    what = f"{alarms_per_node_day:.4g} alarms per node-day at random"
    arm = _told("random_alarms", "baseline", "random", what)
    return msgspec.structs.replace(arm, alarms_per_node_day=alarms_per_node_day)


def _static(name: str, seconds: float) -> Arm:
    hours = seconds / HOUR_S
    return Arm(
        name=name,
        kind="baseline",
        what=f"a checkpoint after every {hours:g} h of work",
        interval=seconds,
    )


def _told(name: str, kind: ArmKind, foresight: Foresight, what: str) -> Arm:
    return Arm(
        name=name,
        kind=kind,
        what=f"{what}; the policy failure_forecast acts on it",
        needs_forecast=True,
        foresight=foresight,
        policies={FORECAST_POLICY: {"predictor": FORETOLD}},
    )


def names_taken() -> frozenset[str]:
    """Return what the arms are called that are not a candidate's."""
    all_installed = dict.fromkeys((INTERVAL_POLICY, MEMBERSHIP_POLICY, FORECAST_POLICY), object)
    arms = baselines(all_installed, Evaluate(recovery="per_step"))
    return frozenset(arm.name for arm in (*arms, random_alarms(0.0)))


_STATIC = {"static_30min": 0.5 * HOUR_S, "static_1h": HOUR_S, "static_3h": 3 * HOUR_S}

FORETOLD = "foretold"
"""Under this name a kernel knows the predictor that was told the future."""
