"""How numbers and findings are said; tables and page use the same words."""

from torchloom_core.evaluate.results import (
    ArmSummary,
    ForecastScore,
    Interval,
    ReplayedPolicy,
    Report,
    Simulation,
)

_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86_400.0
POINTS = 100.0
"""Goodput is a share; differences are told in points of a hundred."""


def duration(seconds: float) -> str:
    """Return a time in the unit a person would use.

    Examples
    --------
    >>> duration(90), duration(5400), duration(604800)
    ('1.5 min', '1.5 h', '7 d')
    """
    for unit_s, unit in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if abs(seconds) >= unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:.3g} s"


def estimate(interval: Interval, digits: int = 3) -> str:
    """Return ``0.951 [0.943, 0.958]``, or the value alone where there is no interval."""
    text = f"{interval.value:.{digits}f}"
    if interval.low is None or interval.high is None:
        return text
    return f"{text} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def gain(interval: Interval | None) -> str:
    """Return a difference in goodput as ``+1.23 [+0.80, +1.70]``, in points."""
    if interval is None:
        return ""
    text = f"{POINTS * interval.value:+.2f}"
    if interval.low is None or interval.high is None:
        return text
    return f"{text} [{POINTS * interval.low:+.2f}, {POINTS * interval.high:+.2f}]"


def is_clear(interval: Interval) -> bool:
    """Say whether the interval leaves out zero."""
    if interval.low is None or interval.high is None:
        return False
    return interval.low > 0 or interval.high < 0


def findings(report: Report) -> list[str]:
    """Return what a person should take away, one sentence each."""
    said = [] if report.trace["failures"] else ["The trace has no failure: nothing can be shown."]
    said += [score_sentence(score) for score in report.forecasts]
    said += [policy_sentence(policy) for policy in report.policies]
    if report.simulation is not None:
        said += _goodput_sentences(report.simulation)
    return said


def score_sentence(score: ForecastScore) -> str:
    """Return how good a predictor was and against which prevalence."""
    text = (
        f"{score.predictor}: AUPRC {estimate(score.auprc)} where a random score has "
        f"{score.prevalence:.3g}, on {score.incidents} incidents."
    )
    return f"{text} {score.skill}".strip()


def policy_sentence(policy: ReplayedPolicy) -> str:
    """Return what a policy did in an open loop."""
    if policy.failed:
        return f"{policy.policy} was quarantined: {policy.failed}"
    silent = "".join(f" {name} forecast nothing." for name in policy.silent)
    return (
        f"{policy.policy}: {policy.granted} of {policy.proposals} proposals granted; "
        f"{policy.incidents_found} of {policy.incidents} incidents found, "
        f"{policy.false_alarms_per_node_day:.3g} false alarms per node-day.{silent}"
    )


def complaints(simulation: Simulation) -> list[str]:
    """Return what broke or said nothing in a run, one sentence for an arm and a plugin."""
    said = []
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


def _goodput_sentences(simulation: Simulation) -> list[str]:
    arms = {arm.name: arm for arm in simulation.arms}
    reference = arms[simulation.reference]
    said = [
        f"Of the baselines that need no forecast and recover as this job does, {reference.name} is "
        f"best: goodput {estimate(reference.goodput)}."
    ]
    honest = (a for a in simulation.arms if a.kind == "baseline" and not a.needs_forecast)
    best = max(honest, key=lambda arm: arm.goodput.value)
    if best.goodput.value > reference.goodput.value:
        said.append(
            f"{best.name}, which recovers otherwise, has goodput {estimate(best.goodput)} "
            f"({gain(best.versus_reference)} points)."
        )
    said += [_arm_sentence(arm, simulation) for arm in simulation.arms if arm.kind == "candidate"]
    return said


def _arm_sentence(arm: ArmSummary, simulation: Simulation) -> str:
    text = f"{arm.name}: goodput {estimate(arm.goodput)}"
    versus = arm.versus_reference
    if versus is None:
        return f"{text}."
    if versus.low is None:
        word = "with too few seeds to be told from"
    elif not is_clear(versus):
        word = "not to be told from"
    elif versus.value > 0:
        word = "better than"
    else:
        word = "worse than"
    text += f", {word} {simulation.reference} ({gain(versus)} points)"
    if arm.to_oracle is not None and simulation.oracle:
        text += f", {arm.to_oracle:.0%} of the way to {simulation.oracle}"
    if arm.invalid_share > 0:
        text += f"; {arm.invalid_share:.0%} of its decisions rest on invalid telemetry"
    return f"{text}."
