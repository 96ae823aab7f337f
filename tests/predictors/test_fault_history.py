import math

import numpy as np
import pytest

from torchloom_core.plugin import Fault
from torchloom_core.testing import view_of
from torchloom_predictors.fault_history import FaultHistoryPredictor

NOW_S = 1_000_000.0
HOUR_S, DAY_S = 3600.0, 86_400.0


def forecast(faults, workers=4, node=("a", "a", "b", "b"), **view):
    predictor = FaultHistoryPredictor(
        FaultHistoryPredictor.Options(half_life_s=6 * HOUR_S, horizon_s=HOUR_S)
    )
    return predictor.forecast(
        view_of(workers=workers, node=node, faults=faults, now_s=NOW_S, **view)
    )


def fault(node, age_s, worker="w0"):
    ts_ns = round((NOW_S - age_s) * 1e9)
    return Fault(worker=worker, node=node, kind="exit", ts_ns=ts_ns, id=f"{worker}-{age_s}")


def rate_per_day(hazard, workers):
    """Return the node's rate that a worker's hazard within an hour came from."""
    return -math.log1p(-hazard) * 24 * workers


EXPOSURE_DAYS = 1.0 + 0.25 / math.log(2)


def test_a_node_with_a_fault_is_worse_than_its_peers():
    hazard = forecast([fault("b", 60.0, "w2")])
    assert hazard.probability[2] > 10 * hazard.probability[0]
    assert hazard.probability[2] == hazard.probability[3]
    assert hazard.why == {2: "b had 1 fault in the last day", 3: "b had 1 fault in the last day"}


def test_the_rate_is_the_gamma_priors_posterior_mean():
    hazard = forecast([fault("a", 12 * HOUR_S), fault("a", 6 * HOUR_S), fault("a", 0.0)])
    expected = (0.0065 + 0.25 + 0.5 + 1.0) / EXPOSURE_DAYS
    assert rate_per_day(hazard.probability[0], 2) == pytest.approx(expected)
    assert rate_per_day(hazard.probability[2], 2) == pytest.approx(0.0065 / EXPOSURE_DAYS)


def test_a_nodes_workers_together_have_its_hazard():
    faults = [fault("a", 0.0)]
    alone = forecast(faults, workers=1, node=("a",)).probability
    shared = forecast(faults, workers=8, node=["a"] * 8).probability
    assert 1 - np.prod(1 - shared) == pytest.approx(alone[0])


def test_a_node_that_took_all_its_workers_along_failed_once():
    together = [fault("a", 600.0 + i, f"w{i}") for i in (2, 1, 0)]
    apart = [fault("a", 600.0), fault("a", 300.0)]
    one, two = forecast(together), forecast(apart)
    assert one.why[0] == "a had 1 fault in the last day"
    assert two.why[0] == "a had 2 faults in the last day"
    assert two.probability[0] > 1.5 * one.probability[0]


def test_a_worker_whose_node_is_unknown_stands_for_itself():
    hazard = forecast([fault("", 0.0, "w1")], workers=2, node=("", ""))
    assert hazard.probability[1] > 10 * hazard.probability[0]
    assert list(hazard.why) == [1]


def test_who_has_gone_is_not_judged_and_takes_no_share():
    hazard = forecast([fault("a", 0.0)], state=["gone", "training", "left", "training"])
    assert np.isnan(hazard.probability).tolist() == [True, False, True, False]
    assert rate_per_day(hazard.probability[1], 1) == pytest.approx(1.0065 / EXPOSURE_DAYS)
