import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.config.schema import Costs
from torchloom_core.plugin import Traffic
from torchloom_core.testing import view_of
from torchloom_core.testing.views import EPOCH_S

STEP = {
    "step_time_s": 1.0,
    "wire_s": 0.8,
    "sent_bytes": 1e7,
    "state_bytes": 1.2e9,
    "round_s": math.nan,
}
anything = st.floats(allow_nan=True, allow_infinity=True)
sizes = st.floats(0.0, 1e15)
shares = st.floats(0.0, 1.0)


def fleet(workers=4, now_s=0.0, costs=None, state="training", **metrics):
    values = {
        name: np.multiply.outer(np.broadcast_to(metrics.get(name, usual), workers), np.ones(60))
        for name, usual in STEP.items()
    }
    return view_of(values, now_s=EPOCH_S + now_s, costs=costs, state=state)


def seen(*views):
    traffic = Traffic()
    for view in views:
        traffic.look(view)
    return traffic


def test_the_worker_that_waits_least_gives_the_network_time():
    traffic = seen(fleet(wire_s=[0.9, 0.95, 0.8, 0.85], sent_bytes=[9e6, 9e6, 1e7, 9e6]))
    assert traffic.busy_share == 0.8
    assert traffic.bytes_per_s == 1.25e7
    assert traffic.transfer_s(1.2e9) == 96.0


def test_in_rounds_of_several_steps_the_wire_is_busy_for_a_share_of_the_round():
    traffic = seen(fleet(step_time_s=0.1, round_s=4.0))
    assert traffic.busy_share == 0.2
    assert traffic.bytes_per_s == 1.25e7


def test_a_transfer_costs_its_network_time_times_the_load_for_all_gpus():
    traffic = seen(fleet(costs=Costs(gpus_per_worker=8.0)))
    assert traffic.transfer_gpu_s(1.2e9) == pytest.approx(96.0 * 0.8 * 4 * 8)
    text = "the state (1.2 GB) takes 96 s of a network that is 80% busy: 2458 GPU-s"
    assert traffic.in_words("the state", traffic.state_bytes) == text


def test_an_idle_network_has_price_zero_and_unknown_bandwidth():
    traffic = seen(fleet(wire_s=0.05))
    assert math.isnan(traffic.bytes_per_s)
    assert traffic.transfer_gpu_s(1.2e9) == 0.0
    text = "it (1.2 GB) uses a network that is 5% busy, priced 0"
    assert traffic.in_words("it", 1.2e9) == text


@pytest.mark.parametrize(
    ("unknown", "text"),
    [
        (
            {"wire_s": math.nan},
            "it (1.2 GB) uses a network with unknown load, priced 0",
        ),
        ({"state_bytes": math.nan}, "it has an unknown size, so its transfer is priced 0"),
    ],
)
def test_an_unknown_value_has_price_zero_and_a_text(unknown, text):
    traffic = seen(fleet(**unknown))
    assert traffic.transfer_gpu_s(traffic.state_bytes) == 0.0
    assert traffic.in_words("it", traffic.state_bytes) == text


def test_the_config_gives_the_state_size_until_it_is_reported():
    costs = Costs(state_bytes=5e8)
    unmeasured = fleet(state_bytes=math.nan, costs=costs)
    assert seen(unmeasured).state_bytes == 5e8
    assert seen(unmeasured, fleet(costs=costs)).state_bytes == 1.2e9
    assert seen(fleet(costs=costs), unmeasured).state_bytes == 1.2e9


def test_a_wire_is_never_busier_than_all_the_time():
    traffic = seen(fleet(wire_s=2.5, sent_bytes=2.5e7))  # reductions that overlap each count
    assert traffic.busy_share == 1.0
    assert traffic.transfer_gpu_s(1e9) == pytest.approx(100.0 * 4)


@pytest.mark.parametrize("odd", [math.inf, -1.0, 0.0, 1e300])
def test_an_impossible_size_is_ignored(odd):
    assert math.isnan(seen(fleet(state_bytes=odd)).state_bytes)


def test_only_training_workers_count_for_the_network():
    states = ["training", "training", "standby", "gone"]
    traffic = seen(fleet(state=states, wire_s=[0.8, 0.8, 0.0, 0.0]))
    assert traffic.busy_share == 0.8
    assert traffic.transfer_gpu_s(1.2e9) == pytest.approx(96.0 * 0.8 * 2)


def test_usual_is_the_median_of_the_last_hour():
    quiet = [fleet(now_s=s, wire_s=0.5) for s in range(0, 3000, 60)]
    loud = [fleet(now_s=s, wire_s=1.0) for s in range(3000, 6000, 60)]
    assert seen(*quiet).usual_gpu_s(1e7) == pytest.approx(0.5 * 0.5 * 4)
    assert seen(*quiet, *loud[:20]).usual_gpu_s(1e7) == pytest.approx(0.5 * 0.5 * 4)
    assert seen(*quiet, *loud).usual_gpu_s(1e7) == pytest.approx(1.0 * 1.0 * 4)
    assert seen(fleet(wire_s=math.nan)).usual_gpu_s(1e7) == 0.0


@given(sizes, sizes, shares, shares)
def test_more_bytes_and_a_busier_network_never_cost_less(one, other, calm, busy):
    (small, large), (calm, busy) = sorted([one, other]), sorted([calm, busy])
    # The same bandwidth: the bytes grow with the time.
    calm, busy = (seen(fleet(wire_s=s, sent_bytes=1e7 * s)) for s in (calm, busy))
    assert calm.transfer_gpu_s(small) <= calm.transfer_gpu_s(large)
    assert calm.transfer_gpu_s(large) <= busy.transfer_gpu_s(large) * (1 + 1e-9)


@given(anything, anything, anything, anything, anything)
def test_a_price_is_finite_and_no_more_than_all_gpus_waiting(step_s, wire_s, sent, state, size):
    traffic = seen(fleet(step_time_s=step_s, wire_s=wire_s, sent_bytes=sent, state_bytes=state))
    for wanted in (size, traffic.state_bytes):
        price = traffic.transfer_gpu_s(wanted)
        assert 0.0 <= price < math.inf
        if price:
            assert price <= 4 * traffic.transfer_s(wanted) * (1 + 1e-9)
        assert traffic.usual_gpu_s(wanted) == pytest.approx(price)
        assert traffic.in_words("it", wanted)


def test_a_fleet_without_workers_is_no_error():
    assert math.isnan(seen(fleet(workers=0)).busy_share)
