"""The findings and warnings of a report, one sentence each."""

import itertools
import statistics
from collections.abc import Iterable, Iterator

import msgspec

from torchloom_core.lab.evaluate.goodput.compare import MIN_SEEDS
from torchloom_core.lab.evaluate.report import allreduce, wording
from torchloom_core.lab.evaluate.report.sweep import recommendations
from torchloom_core.lab.evaluate.results import (
    ArmSummary,
    ReplayedPolicy,
    SensitivityPoint,
    Simulation,
    TraceResults,
)
from torchloom_core.lab.learning.forecast_score import AlarmUnit, ForecastScore

_MOST_NODES = 3
_TOO_GOOD = 0.9
"""Share of the oracle's gain above which a candidate probably reads the future."""


def findings(results: TraceResults) -> list[str]:
    """Return the findings on one trace: predictors, policies, and the simulation."""
    if results.allreduce is not msgspec.UNSET:
        return list(allreduce.findings(results.allreduce))
    found = [] if results.trace["failures"] else ["The trace has no failures, so no effect shows."]
    found += [_score(score) for score in results.forecasts]
    found += [_policy(policy, wording.policy_alarms(results)) for policy in results.policies]
    if results.simulation is not None:
        found += _goodput(results.simulation)
    return found


def watched(simulation: Simulation) -> list[ArmSummary]:
    """Return the arms with policies, the best first."""
    return ranked(arm for arm in simulation.arms if arm.versus_without is not None)


def ranked(arms: Iterable[ArmSummary]) -> list[ArmSummary]:
    """Return arms by goodput, the best first."""
    return sorted(arms, key=lambda arm: (-arm.goodput.value, arm.name))


def warnings(simulation: Simulation) -> list[str]:
    """Return the warnings: quarantined or silent plugins, and doubtful settings."""
    found = [*_idle_oracle(simulation), *_too_good(simulation)]
    for arm in simulation.arms:
        found += [
            f"{arm.name}: {name} was quarantined: {why}" for name, why in arm.quarantined.items()
        ]
        found += [
            f"{arm.name}: {name} gave no probability for any worker in {count} of "
            f"{len(simulation.seeds)} runs"
            for name, count in arm.silent.items()
        ]
    return found


def alerts(simulation: Simulation) -> list[str]:
    """Return the alerts of the candidates, one sentence each."""
    return [
        f"alert of {arm.name}: {text}"
        for arm in simulation.arms
        if arm.kind == "candidate"
        for text in arm.operations.alerts
    ]


def flips(simulation: Simulation) -> list[str]:
    """Return where a clear gain turns into a clear loss, or back, as one cost varies."""
    found = []
    points = sorted(simulation.sensitivity, key=lambda p: (p.arm, p.cost, p.factor))
    for (arm, cost), line in itertools.groupby(points, key=lambda p: (p.arm, p.cost)):
        clear = (point for point in line if wording.is_clear(point.gain))
        for one, other in itertools.pairwise(clear):
            if one.gain.value * other.gain.value < 0:
                first, second = ("gains", "loses")[:: 1 if one.gain.value > 0 else -1]
                found.append(
                    f"{arm} {first} with {cost} x {one.factor:g} and {second} with {cost} x "
                    f"{other.factor:g}; by linear interpolation the sign changes at x "
                    f"{_crossing(one, other):.2g}."
                )
    return found


def _crossing(one: SensitivityPoint, other: SensitivityPoint) -> float:
    """Return the factor of zero gain, interpolated over the factor's logarithm."""
    share = one.gain.value / (one.gain.value - other.gain.value)
    return float(one.factor * (other.factor / one.factor) ** share)


def _score(score: ForecastScore) -> str:
    text = (
        f"{score.predictor}: AUPRC {wording.estimate(score.auprc)} at a prevalence of "
        f"{score.prevalence:.3g}, on {score.incidents} incidents."
    )
    return f"{text} {_late(score)}{score.skill}".strip()


def _late(score: ForecastScore) -> str:
    """Return the median delay of a detection, "" for a forecast."""
    if score.task == "forecast" or not score.leads_s:
        return ""
    return f"The median delay is {wording.duration(0 - statistics.median(score.leads_s))}. "


def _policy(policy: ReplayedPolicy, alarms: AlarmUnit) -> str:
    name = policy.what or policy.policy
    if policy.failed:
        return f"{name} was quarantined: {policy.failed}"
    silent = "".join(f" {name} gave no forecast." for name in policy.silent)
    return (
        f"{name}: {policy.granted} of {policy.proposals} proposals granted; "
        f"{policy.incidents_found} of {policy.incidents} incidents found, "
        f"{alarms.rate_text(policy.false_alarms_per_node_day)}.{silent}"
    )


def _goodput(simulation: Simulation) -> Iterator[str]:
    for arm in simulation.arms:
        if arm.kind == "candidate":
            yield _idle(arm, simulation) if arm.decisions == 0 else _active(arm, simulation)
    arms = {arm.name: arm for arm in simulation.arms}
    reference = arms[simulation.reference]
    yield (
        f"Of the baselines that need no forecast and recover as this job does, {reference.name} is "
        f"best: goodput {wording.estimate(reference.goodput)}.{_similar_baselines(simulation)}"
    )
    best = max(_comparable_baselines(simulation), key=lambda arm: arm.goodput.value)
    if best.goodput.value > reference.goodput.value:
        yield (
            f"{best.name}, with another recovery mode, has goodput "
            f"{wording.estimate(best.goodput)} ({wording.gain(best.versus_reference)} points)."
            f"{_too_few(best, simulation)}"
        )
    for arm in ranked(simulation.arms):
        if arm.as_planned is not msgspec.UNSET and arm.versus_reference is not None:
            yield (
                f"{arm.name} trains on standbys and spares, with a larger global batch. Its gain "
                f"over {reference.name} is {wording.gain(arm.versus_reference)} points if every "
                f"sample counts fully, and {wording.gain(arm.as_planned.versus_reference)} if "
                f"groups beyond the plan count nothing; the true gain is between the two."
            )
    if simulation.sweep is not msgspec.UNSET:
        yield from recommendations(simulation.sweep, len(simulation.seeds))
    yield (
        "Intervals are over draws of nodes and time from this one trace: another fleet, or "
        "another year of this one, may differ by more."
    )


def _comparable_baselines(simulation: Simulation) -> list[ArmSummary]:
    """Return the baselines that need no forecast and do not grow, the best first."""
    return [
        arm
        for arm in ranked(simulation.arms)
        if arm.kind == "baseline" and not arm.needs_forecast and arm.as_planned is msgspec.UNSET
    ]


def _similar_baselines(simulation: Simulation) -> str:
    """Name the baselines with the job's recovery that are not clearly worse than the reference."""
    versus = {
        arm.name: arm.versus_reference
        for arm in _comparable_baselines(simulation)
        if arm.versus_reference is not None
        and arm.recovery in (None, simulation.job.get("recovery"))
    }
    if any(gain.low is None for gain in versus.values()):
        return (
            f" Too few seeds for a comparison with other baselines: need {MIN_SEEDS}, was "
            f"{len(simulation.seeds)}."
        )
    similar = [
        f"{name} ({wording.gain(gain)} points)"
        for name, gain in versus.items()
        if not wording.is_clear(gain)
    ]
    return f" Not clearly worse: {', '.join(similar)}." if similar else ""


def _too_few(arm: ArmSummary, simulation: Simulation) -> str:
    versus = arm.versus_reference
    if versus is None or versus.low is not None:
        return ""
    return f" Too few seeds for a comparison with {simulation.reference}."


def _idle(arm: ArmSummary, simulation: Simulation) -> str:
    """Return that an arm took no action, and why."""
    return (
        f"{arm.name} took no action in {len(simulation.seeds)} runs: {_why_idle(arm)}. Its "
        f"goodput is that of the job without it: {wording.estimate(arm.goodput)}."
    )


def _why_idle(arm: ArmSummary) -> str:
    operations = arm.operations
    if operations.granted:
        granted = wording.counts(operations.granted)
        return f"its granted actions do not change the run ({granted} per run)"
    if not operations.denied:
        return "it proposed nothing"
    rule = max(sorted(operations.denied), key=lambda rule: operations.denied[rule])
    return (
        f"all of its {operations.proposed:.3g} proposals per run were denied, most often by "
        f"the rule {rule}: {operations.why_denied[rule]}"
    )


def _active(arm: ArmSummary, simulation: Simulation) -> str:
    without, versus = arm.versus_without, arm.versus_reference
    alone = "the same job without it"
    relations = []
    if without is not None:
        other = f"{alone}, here {simulation.reference}" if without == versus else alone
        relations.append(wording.relation(without, other))
    if versus is not None and versus != without:
        relations.append(wording.relation(versus, simulation.reference))
    text = f"{arm.name} {', and '.join(relations)}: goodput {wording.estimate(arm.goodput)}"
    if arm.to_oracle is not None and versus is not None and wording.is_clear(versus):
        text += f", {arm.to_oracle:.0%} of the gain of {simulation.oracle}"
    if arm.invalid_share:
        text += f"; {arm.invalid_share:.0%} of its decisions use telemetry of another load"
    return f"{text}. {_operations(arm)}"


def _operations(arm: ArmSummary) -> str:
    operations = arm.operations
    text = f"Granted per run: {wording.counts(operations.granted)}"
    if operations.denied:
        text += f"; denied by {wording.counts(operations.denied)}"
    if operations.cordons:
        text += f"; cordoned {wording.counts(operations.cordons, _MOST_NODES)}"
    return f"{text}."


def _too_good(simulation: Simulation) -> Iterator[str]:
    """Yield a warning for each candidate that does nearly as well as the oracle."""
    for arm in simulation.arms:
        if arm.kind == "candidate" and arm.to_oracle is not None and arm.to_oracle > _TOO_GOOD:
            gain = arm.versus_without
            if gain is not None and wording.is_clear(gain) and gain.value > 0:
                yield (
                    f"{arm.name} reaches {arm.to_oracle:.0%} of the gain of {simulation.oracle}, "
                    f"which knows the future: check that its inputs do not leak future failures"
                )


def _idle_oracle(simulation: Simulation) -> Iterator[str]:
    """Yield a warning if even the oracle's forecasts led to no action."""
    oracle = next(arm for arm in simulation.arms if arm.name == simulation.oracle)
    if oracle.failures > 0 and oracle.versus_without is not None and oracle.decisions == 0:
        horizon = wording.duration(simulation.horizon_s)
        tick = wording.duration(simulation.job["tick_s"])
        yield (
            f"{oracle.name}, which knows each failure {horizon} ahead, took no action: "
            f"{_why_idle(oracle)}. Policies run every {tick}, and read a forecast one tick after "
            f"its request: with these settings no forecast can pay"
        )
