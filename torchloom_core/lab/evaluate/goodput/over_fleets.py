"""Compare the same arms over several traces, each of which is one fleet."""

from collections.abc import Sequence

import msgspec

from torchloom_core.lab.evaluate.fleet_means import difference_over_fleets, share_over_fleets
from torchloom_core.lab.evaluate.fleet_results import FleetArm, FleetGoodput
from torchloom_core.lab.evaluate.results import ArmSummary, Simulation


def goodput_over_fleets(simulations: Sequence[Simulation]) -> FleetGoodput:
    """Return the results over fleets of the arms that were played on all traces.

    Per trace, an arm's value is its mean over seeds, and gains are paired by seed.
    """
    played = [{arm.name: arm for arm in simulation.arms} for simulation in simulations]
    names = [name for name in played[0] if all(name in arms for arms in played)]
    each = {name: [arms[name] for arms in played] for name in names}
    reference = _reference(each, [str(one.job.get("recovery")) for one in simulations])
    return FleetGoodput(
        reference=reference,
        arms=tuple(_over_fleets(each[name], each[reference]) for name in names),
    )


def _reference(each: dict[str, list[ArmSummary]], recovery: list[str]) -> str:
    """Return the best baseline over fleets that needs no forecast and recovers as the jobs do.

    It is one for all traces, and need not be the best on each.
    """
    eligible = [
        name
        for name, arms in each.items()
        if arms[0].kind == "baseline"
        and not arms[0].needs_forecast
        and all(arm.as_planned is msgspec.UNSET for arm in arms)
        and all(arm.recovery in (None, way) for arm, way in zip(arms, recovery, strict=True))
    ]
    return max(eligible, key=lambda name: sum(arm.goodput.value for arm in each[name]))


def _over_fleets(arms: Sequence[ArmSummary], reference: Sequence[ArmSummary]) -> FleetArm:
    first, count = arms[0], len(arms)
    over = [arm.goodput.value - its.goodput.value for arm, its in zip(arms, reference, strict=True)]
    without = [arm.versus_without.value for arm in arms if arm.versus_without is not None]
    return FleetArm(
        name=first.name,
        kind=first.kind,
        goodput=share_over_fleets([arm.goodput.value for arm in arms], count),
        over_reference=tuple(over),
        versus_reference=None if arms == reference else difference_over_fleets(over, count),
        versus_without=None if len(without) < count else difference_over_fleets(without, count),
    )
