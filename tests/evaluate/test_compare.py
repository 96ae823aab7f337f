"""The result of an arm is a mean over seeds, with an interval of nominal coverage."""

import msgspec
import numpy as np
import pytest

from torchloom_core.lab.evaluate.arm import Arm, Verdicts
from torchloom_core.lab.evaluate.goodput import compare
from torchloom_core.lab.evaluate.goodput.arms import elastic
from torchloom_core.lab.evaluate.results import RunResult


def run(goodput, **fields):
    defaults = {"arm": "a", "seed": 0, "wall_s": 10.0, "gpus": 4, "job_gpus": 2, "buckets": {}}
    return RunResult(**{**defaults, "ettr": goodput / 2, **fields}, goodput=goodput)


def arm(name, kind="baseline", **fields):
    return Arm(name=name, kind=kind, what=f"what {name} does", **fields)


def test_an_interval_reaches_as_far_as_95_percent_of_the_means_of_resamples():
    sample = np.random.default_rng(0).normal(size=400)
    found = compare.interval(sample)
    half = 1.96 * sample.std() / np.sqrt(400)
    assert found.value == pytest.approx(sample.mean())
    assert found.value - found.low == pytest.approx(half, rel=0.05)
    assert found.high - found.value == pytest.approx(half, rel=0.05)
    assert found.method == "bootstrap of 400 seeds, 10000 resamples"


def test_six_seeds_have_an_interval_and_five_none():
    assert compare.interval([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]).low is not None
    few = compare.interval([0.1, 0.2, 0.3, 0.4, 0.5])
    assert (few.low, few.high) == (None, None)
    assert few.value == pytest.approx(0.3)
    assert few.method == "none: need 6 seeds, was 5"


def test_the_reference_is_the_best_baseline_that_could_be_the_jobs_own():
    arms = [
        arm("best"),
        arm("own", recovery="restart"),
        arm("worse"),
        arm("forecast", needs_forecast=True),
        arm("otherwise", recovery="per_step"),
        arm("candidate", kind="candidate"),
        arm("bound", kind="bound"),
        elastic(),
    ]
    goodput = dict.fromkeys((one.name for one in arms), 0.9)
    goodput |= {"best": 0.5, "own": 0.6, "worse": 0.4, "elastic": 0.95}
    runs = {name: [run(value), run(value - 0.1)] for name, value in goodput.items()}
    assert compare.reference_of(arms, runs, "restart") == "own"
    assert compare.reference_of(arms[:1] + arms[2:], runs, "restart") == "best"
    assert compare.reference_of(arms, runs, "per_step") == "otherwise"
    assert compare.mean_goodput(runs["own"]) == pytest.approx(0.55)


@pytest.fixture
def summary():
    """Return a function that sums up one arm beside a reference and an oracle."""

    def of(own, one=None, *, oracle=(0.8, 0.8), without=None):
        one = one or arm("mine", kind="candidate")
        runs = {"daly": [run(0.4)] * len(own), one.name: own}
        runs |= {"oracle": [run(value) for value in oracle]} if oracle else {}
        controls = {one.name: without} if without else {}
        named = {"reference": "daly", "oracle": "oracle", "without": controls}
        (found,) = compare.summarize([one], runs, **named)
        return found

    return of


def test_what_became_of_an_arm_is_the_mean_over_its_runs(summary):
    verdicts = Verdicts(proposed=2.0, granted={"migrate": 2.0})
    own = [
        run(0.5, failures=3, migrations=2, moves=4, right_moves=1, decisions=6, seed=0,
            invalid_decisions=1, buckets={"useful": 20.0, "lost": 20.0}, silent=("ewma",),
            quarantined={"a": "raised"}, operations=verdicts),
        run(0.7, failures=1, migrations=1, moves=1, right_moves=1, decisions=2, seed=1,
            invalid_decisions=1, buckets={"useful": 30.0, "lost": 10.0}, silent=("ewma", "a"),
            quarantined={"b": "overran"}, operations=verdicts),
    ]  # fmt: skip
    one = arm("mine", kind="candidate", needs_forecast=True, recovery="restart")
    found = summary(own, one, without=[run(0.5), run(0.5)])
    assert (found.name, found.kind, found.what) == ("mine", "candidate", "what mine does")
    assert (found.needs_forecast, found.recovery) == (True, "restart")
    assert found.goodput.value == pytest.approx(0.6)
    assert found.ettr.value == pytest.approx(0.3)
    assert (found.failures, found.migrations, found.decisions) == (2.0, 1.5, 4.0)
    assert (found.moves, found.right_moves) == (2.5, 1.0)
    assert found.invalid_share == 2 / 8
    assert found.buckets == {"useful": pytest.approx(0.625), "lost": pytest.approx(0.375)}
    assert found.quarantined == {"a": "raised", "b": "overran"}
    assert found.silent == {"a": 1, "ewma": 2}
    assert list(found.silent) == ["a", "ewma"]
    assert found.operations == verdicts
    assert found.as_planned is msgspec.UNSET


def test_an_arm_is_compared_with_reference_control_and_oracle(summary):
    found = summary([run(0.5), run(0.7)], without=[run(0.5), run(0.6)])
    assert found.versus_reference.value == pytest.approx(0.2)
    assert (found.versus_reference.ahead, found.versus_reference.behind) == (2, 0)
    assert found.versus_without.value == pytest.approx(0.05)
    assert (found.versus_without.ahead, found.versus_without.behind) == (1, 0)
    assert found.to_oracle == pytest.approx(0.5)
    assert found.invalid_share is None


def test_missing_comparisons_are_none(summary):
    own = [run(0.5), run(0.7)]
    assert summary(own).versus_without is None
    assert summary(own, arm("daly")).versus_reference is None
    assert summary(own, arm("other")).to_oracle is None
    assert summary(own, oracle=()).to_oracle is None
    assert summary(own, oracle=(0.4, 0.4)).to_oracle is None


def test_groups_beyond_the_plan_count_nothing_as_planned(summary):
    grows = msgspec.structs.replace(elastic(), kind="candidate")
    found = summary([run(0.9, as_planned=0.5), run(0.7)], grows)
    assert found.goodput.value == pytest.approx(0.8)
    assert found.as_planned.goodput.value == pytest.approx(0.6)
    assert found.as_planned.versus_reference.value == pytest.approx(0.2)
    assert found.as_planned.versus_reference.ahead == 2
    assert found.to_oracle is None
