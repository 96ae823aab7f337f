"""Example reports, as an evaluation makes them."""

import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.evaluate.arm import Verdicts
from torchloom_core.lab.evaluate.results import (
    ArmSummary,
    BreakEven,
    ReplayedPolicy,
    Report,
    RunResult,
    SensitivityPoint,
    Simulation,
    TimelineEntry,
    TraceResults,
)
from torchloom_core.lab.learning.forecast_score import (
    CalibrationBin,
    ForecastScore,
    Interval,
    PrPoint,
)

START_NS = 1_700_000_000 * SECOND_NS
DAY_NS = 86_400 * SECOND_NS

TRACE = {
    "name": "small",
    "start_ns": START_NS,
    "end_ns": START_NS + 30 * DAY_NS,
    "synthetic": True,
    "source": "torchloom trace synthesize",
    "licence": "CC0-1.0",
    "failures": 9,
    "watched": "node",
}


_HAPPENED = (
    (2, "worker_lost"),
    (4, "decided cordon"),
    (5, "migrated"),
    (6, "hit_missed"),
    (9, "decided checkpoint"),
)


def interval(value: float, half: float = 0.01) -> Interval:
    return Interval(value=value, low=value - half, high=value + half)


def arm(name: str, kind: str, goodput: float, **fields: object) -> ArmSummary:
    lost = 1 - goodput
    return ArmSummary(
        name=name,
        kind=kind,
        what=f"{name}, as it is",
        needs_forecast=kind in ("oracle", "candidate"),
        goodput=interval(goodput),
        ettr=interval(min(1.0, goodput + 0.03)),
        buckets={
            "useful": goodput,
            "lost": 0.4 * lost,
            "spare": 0.3 * lost,
            "checkpoint": 0.2 * lost,
            "restart": 0.1 * lost,
        },
        **fields,
    )


def simulation(**fields: object) -> Simulation:
    timeline = tuple(
        TimelineEntry(ts_ns=START_NS + day * DAY_NS, kind=kind, place="n3")
        for day, kind in _HAPPENED
    )
    arms = (
        arm("no_failures", "bound", 0.97),
        arm("young", "baseline", 0.90),
        arm("daly", "baseline", 0.905),
        arm(
            "oracle",
            "oracle",
            0.95,
            versus_reference=interval(0.045),
            versus_without=interval(0.045),
            failures=3.0,
            decisions=4.0,
            operations=Verdicts(proposed=4.0, granted={"migrate": 4.0}),
        ),
        arm(
            "failure_forecast",
            "candidate",
            0.92,
            versus_reference=interval(0.015, 0.005),
            versus_without=interval(0.025, 0.005),
            to_oracle=1 / 3,
            decisions=5.0,
            operations=Verdicts(
                proposed=7.0,
                granted={"migrate": 3.0, "cordon": 2.0},
                denied={"cordoned_share": 2.0},
                why_denied={"cordoned_share": "need at most 10 % of nodes cordoned"},
                cordons={"n3": 1.0, "n4": 0.5, "n5": 0.25, "n6": 0.25},
            ),
            invalid_share=0.25,
        ),
    )
    runs = tuple(
        RunResult(
            arm=name,
            seed=0,
            wall_s=30 * 86_400.0,
            gpus=280,
            job_gpus=256,
            buckets={"useful": 1.0},
            goodput=0.9,
            ettr=0.92,
            timeline=timeline,
        )
        for name in ("daly", "failure_forecast")
    )
    points = tuple(
        SensitivityPoint(
            arm="failure_forecast", cost="migrate_s", factor=f, gain=interval(0.02 - 0.01 * f)
        )
        for f in (0.25, 1.0, 4.0)
    )
    return Simulation(
        **{
            "job": {"groups": 32, "tick_s": 60.0},
            "seeds": (0, 1),
            "reference": "daly",
            "oracle": "oracle",
            "horizon_s": 7 * 86_400.0,
            "arms": arms,
            "runs": runs,
            "break_even": BreakEven(
                precision=0.12,
                loss_gpu_s=90_000,
                price_gpu_s=10_800,
                last_price_gpu_s=16_200,
                measured={"trend": 0.3},
            ),
            "sensitivity": points,
            "unknown_follows": {"component": arms, "job": arms[:2]},
            **fields,
        }
    )


def score(predictor: str = "trend", **fields: object) -> ForecastScore:
    recall = np.linspace(0, 1, 11)
    return ForecastScore(
        **{
            "predictor": predictor,
            "task": "forecast",
            "horizon_s": 7 * 86_400.0,
            "lead_s": 0.0,
            "from_ns": START_NS + 20 * DAY_NS,
            "until_ns": START_NS + 30 * DAY_NS,
            "components": 48,
            "component_days": 480.0,
            "samples": 480,
            "positives": 24,
            "prevalence": 0.05,
            "incidents": 9,
            "auprc": interval(0.31),
            "threshold": 0.2,
            "threshold_from": "the days before",
            "precision": interval(0.4),
            "recall": interval(0.5),
            "f1": 0.44,
            "false_alarms_per_node_day": interval(0.02),
            "leads_s": (3600.0, 7200.0, 90_000.0),
            "calibration": (CalibrationBin(forecast=0.1, observed=0.08, samples=50),),
            "curve": tuple(
                PrPoint(threshold=float(1 - r), precision=float(1 - 0.8 * r), recall=float(r))
                for r in recall
            ),
            "skill": "Better than random.",
            **fields,
        }
    )


def results(**fields: object) -> TraceResults:
    """Return what was found on a trace."""
    return TraceResults(
        **{
            "trace": TRACE,
            "config": {"evaluate": {"groups": 32}},
            "assumptions": ("A checkpoint costs 10 s.",),
            "forecasts": (score(), score("ewma", flags=("no_embargo: need 7 d, was 0 d",))),
            "policies": (
                ReplayedPolicy(policy="straggler", proposals=4, granted=1, denied_by={"shadow": 3}),
            ),
            "simulation": simulation(),
            **fields,
        }
    )


def report(*, mode: str = "simulate", **fields: object) -> Report:
    """Return a report on one trace."""
    return Report(mode=mode, traces=(results(**fields),), torchloom="0.1.0")
