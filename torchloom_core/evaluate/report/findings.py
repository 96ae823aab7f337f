"""What a person should take away from a report, in sentences."""

import itertools
import statistics
from collections.abc import Iterable, Iterator

import msgspec

from torchloom_core.evaluate.goodput.compare import MIN_SEEDS
from torchloom_core.evaluate.report import allreduce, wording
from torchloom_core.evaluate.report.sweep import answers
from torchloom_core.evaluate.results import (
    ArmSummary,
    ReplayedPolicy,
    SensitivityPoint,
    Simulation,
    TraceResults,
)
from torchloom_core.learning.alarm_rate import AlarmUnit
from torchloom_core.learning.forecast_score import ForecastScore

_MOST_NODES = 3
_AS_TOLD = 0.9
"""So much of the way to the oracle goes nobody who has to forecast."""


def findings(results: TraceResults) -> list[str]:
    """Return one sentence or two on everything that was tested on a trace."""
    if results.allreduce is not msgspec.UNSET:
        return list(allreduce.answers(results.allreduce))
    said = [] if results.trace["failures"] else ["The trace has no failure: nothing can be shown."]
    said += [_score(score) for score in results.forecasts]
    said += [_policy(policy, wording.policy_alarms(results)) for policy in results.policies]
    if results.simulation is not None:
        said += _goodput(results.simulation)
    return said


def watched(simulation: Simulation) -> list[ArmSummary]:
    """Return the arms with policies, the best first."""
    return ranked(arm for arm in simulation.arms if arm.versus_without is not None)


def ranked(arms: Iterable[ArmSummary]) -> list[ArmSummary]:
    """Return arms by goodput, the best first."""
    return sorted(arms, key=lambda arm: (-arm.goodput.value, arm.name))


def complaints(simulation: Simulation) -> list[str]:
    """Return what broke, said nothing or could not act, one sentence each."""
    said = [*_idle_oracle(simulation), *_too_good(simulation)]
    for arm in simulation.arms:
        said += [
            f"{arm.name}: {name} was quarantined: {why}" for name, why in arm.quarantined.items()
        ]
        said += [
            f"{arm.name}: {name} forecast nothing in {count} of {len(simulation.seeds)} runs: it "
            f"gave no worker a probability"
            for name, count in arm.silent.items()
        ]
    return said


def alerts(simulation: Simulation) -> list[str]:
    """Return what the candidates tell people, one sentence each."""
    return [
        f"{arm.name} alerts: {text}"
        for arm in simulation.arms
        if arm.kind == "candidate"
        for text in arm.operations.alerts
    ]


def flips(simulation: Simulation) -> list[str]:
    """Return where a gain that is clear turns into a clear loss, or back, as one cost varies."""
    said = []
    points = sorted(simulation.sensitivity, key=lambda p: (p.arm, p.cost, p.factor))
    for (arm, cost), line in itertools.groupby(points, key=lambda p: (p.arm, p.cost)):
        clear = (point for point in line if wording.is_clear(point.gain))
        for one, other in itertools.pairwise(clear):
            if one.gain.value * other.gain.value < 0:
                first, second = ("gains", "loses")[:: 1 if one.gain.value > 0 else -1]
                said.append(
                    f"{arm} {first} where {cost} is {one.factor:g} times as large and {second} "
                    f"where it is {other.factor:g} times: on a straight line between them the "
                    f"sign turns at {_crossing(one, other):.2g} times."
                )
    return said


def _crossing(one: SensitivityPoint, other: SensitivityPoint) -> float:
    """Return the factor at which the gain is zero, on a line over the factor's logarithm."""
    share = one.gain.value / (one.gain.value - other.gain.value)
    return float(one.factor * (other.factor / one.factor) ** share)


def _score(score: ForecastScore) -> str:
    text = (
        f"{score.predictor}: AUPRC {wording.estimate(score.auprc)} at a prevalence of "
        f"{score.prevalence:.3g}, on {score.incidents} incidents."
    )
    return f"{text} {_late(score)}{score.skill}".strip()


def _late(score: ForecastScore) -> str:
    """Return how long a detection takes; nothing of a forecast."""
    if score.task == "forecast" or not score.leads_s:
        return ""
    return f"The median delay is {wording.duration(0 - statistics.median(score.leads_s))}. "


def _policy(policy: ReplayedPolicy, alarms: AlarmUnit) -> str:
    name = policy.what or policy.policy
    if policy.failed:
        return f"{name} was quarantined: {policy.failed}"
    silent = "".join(f" {name} forecast nothing." for name in policy.silent)
    return (
        f"{name}: {policy.granted} of {policy.proposals} proposals granted; "
        f"{policy.incidents_found} of {policy.incidents} incidents found, "
        f"{alarms.said(policy.false_alarms_per_node_day)}.{silent}"
    )


def _goodput(simulation: Simulation) -> Iterator[str]:
    for arm in simulation.arms:
        if arm.kind == "candidate":
            yield _idle(arm, simulation) if arm.decisions == 0 else _active(arm, simulation)
    arms = {arm.name: arm for arm in simulation.arms}
    reference = arms[simulation.reference]
    yield (
        f"Of the baselines that need no forecast and recover as this job does, {reference.name} is "
        f"best: goodput {wording.estimate(reference.goodput)}.{_alike(simulation)}"
    )
    best = max(_honest(simulation), key=lambda arm: arm.goodput.value)
    if best.goodput.value > reference.goodput.value:
        yield (
            f"{best.name}, which recovers otherwise, has goodput {wording.estimate(best.goodput)} "
            f"({wording.gain(best.versus_reference)} points).{_untold(best, simulation)}"
        )
    for arm in ranked(simulation.arms):
        if arm.as_planned is not msgspec.UNSET and arm.versus_reference is not None:
            yield (
                f"{arm.name} trains on what would stand by or be spare, with a larger global "
                f"batch. It comes to {wording.gain(arm.versus_reference)} points over "
                f"{reference.name} if every sample counts as much as before, and to "
                f"{wording.gain(arm.as_planned.versus_reference)} if more groups than planned are "
                f"worth nothing: what it gains lies between the two."
            )
    if simulation.sweep is not msgspec.UNSET:
        yield from answers(simulation.sweep, len(simulation.seeds))
    yield (
        "Intervals are over draws of nodes and time from this one trace: another fleet, or "
        "another year of this one, may differ by more."
    )


def _honest(simulation: Simulation) -> list[ArmSummary]:
    """Return the baselines that need no forecast and keep the planned batch, the best first."""
    return [
        arm
        for arm in ranked(simulation.arms)
        if arm.kind == "baseline" and not arm.needs_forecast and arm.as_planned is msgspec.UNSET
    ]


def _alike(simulation: Simulation) -> str:
    """Say which others that recover as the job does are not clearly worse than the reference."""
    versus = {
        arm.name: arm.versus_reference
        for arm in _honest(simulation)
        if arm.versus_reference is not None
        and arm.recovery in (None, simulation.job.get("recovery"))
    }
    if any(gain.low is None for gain in versus.values()):
        return (
            f" Too few seeds were played to tell whether another is as good: need {MIN_SEEDS}, "
            f"was {len(simulation.seeds)}."
        )
    alike = [
        f"{name} ({wording.gain(gain)} points)"
        for name, gain in versus.items()
        if not wording.is_clear(gain)
    ]
    return f" Not clearly worse: {', '.join(alike)}." if alike else ""


def _untold(arm: ArmSummary, simulation: Simulation) -> str:
    versus = arm.versus_reference
    if versus is None or versus.low is not None:
        return ""
    return f" Too few seeds to tell it from {simulation.reference}."


def _idle(arm: ArmSummary, simulation: Simulation) -> str:
    """Say that an arm did nothing, and why; what its job comes to is not its doing."""
    return (
        f"{arm.name} did nothing in {len(simulation.seeds)} runs: {_why_idle(arm)}. The job fared "
        f"as it does without it: goodput {wording.estimate(arm.goodput)}."
    )


def _why_idle(arm: ArmSummary) -> str:
    operations = arm.operations
    if operations.granted:
        return f"what it was granted changes nothing ({wording.counts(operations.granted)} a run)"
    if not operations.denied:
        return "it proposed nothing"
    rule = max(sorted(operations.denied), key=lambda rule: operations.denied[rule])
    return (
        f"none of its {operations.proposed:.3g} proposals a run was granted, most often by "
        f"the rule {rule}: {operations.why_denied[rule]}"
    )


def _active(arm: ArmSummary, simulation: Simulation) -> str:
    without, versus = arm.versus_without, arm.versus_reference
    alone = "the same job without it"
    said = []
    if without is not None:
        other = f"{alone}, here {simulation.reference}" if without == versus else alone
        said.append(wording.relation(without, other))
    if versus is not None and versus != without:
        said.append(wording.relation(versus, simulation.reference))
    text = f"{arm.name} {', and '.join(said)}: goodput {wording.estimate(arm.goodput)}"
    if arm.to_oracle is not None and versus is not None and wording.is_clear(versus):
        text += f", {arm.to_oracle:.0%} of the way to {simulation.oracle}"
    if arm.invalid_share:
        text += f"; {arm.invalid_share:.0%} of its decisions rest on invalid telemetry"
    return f"{text}. {_operations(arm)}"


def _operations(arm: ArmSummary) -> str:
    operations = arm.operations
    text = f"Granted a run: {wording.counts(operations.granted)}"
    if operations.denied:
        text += f"; denied by {wording.counts(operations.denied)}"
    if operations.cordons:
        text += f"; cordoned {wording.counts(operations.cordons, _MOST_NODES)}"
    return f"{text}."


def _too_good(simulation: Simulation) -> Iterator[str]:
    """Yield the candidates that do as well as who knows the future."""
    for arm in simulation.arms:
        if arm.kind == "candidate" and arm.to_oracle is not None and arm.to_oracle > _AS_TOLD:
            gain = arm.versus_without
            if gain is not None and wording.is_clear(gain) and gain.value > 0:
                yield (
                    f"{arm.name} goes {arm.to_oracle:.0%} of the way to {simulation.oracle}, who "
                    f"knows the future: see that nothing tells it what is to come"
                )


def _idle_oracle(simulation: Simulation) -> Iterator[str]:
    """Yield that no forecast can be acted on, where even the oracle's are not."""
    oracle = next(arm for arm in simulation.arms if arm.name == simulation.oracle)
    if oracle.failures > 0 and oracle.versus_without is not None and oracle.decisions == 0:
        horizon = wording.duration(simulation.horizon_s)
        tick = wording.duration(simulation.job["tick_s"])
        yield (
            f"{oracle.name}, told of each failure {horizon} before it comes, did nothing: "
            f"{_why_idle(oracle)}. Policies look every {tick}, and read a forecast at the look "
            f"after the one at which it was asked for: here no forecast can pay"
        )
