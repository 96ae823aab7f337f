import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.config.schema import Costs
from torchloom_core.plugin import AdmitGroup, Fault
from torchloom_core.testing import view_of
from torchloom_policies.membership import MembershipPolicy

NOW_S = 1_700_000_000.0
STEP = {
    "step_time_s": 1.0,
    "wire_s": 0.8,
    "sent_bytes": 1e7,
    "state_bytes": 1.2e9,
    "round_s": math.nan,
}
TWO_WAIT = ("training", "training", "standby", "standby")


def policy(**options):
    return MembershipPolicy(MembershipPolicy.Options(**options))


def fleet(state=TWO_WAIT, now_s=NOW_S, step=None, **view):
    unknown = dict.fromkeys(STEP, math.nan)
    metrics = {
        name: np.full((len(state), 60), value)
        for name, value in {**unknown, **(step or {})}.items()
    }
    return view_of(metrics, now_s=now_s, state=state, **view)


def admitted(policy, **view):
    return [proposal.action.group for proposal in policy.on_tick(fleet(**view))]


def fault(node, ago_s, **fields):
    return Fault(
        **{
            "worker": "",
            "node": node,
            "kind": "gpu",
            "ts_ns": int(NOW_S - ago_s) * 10**9,
            "id": f"{node}-{ago_s}",
            **fields,
        }
    )


def test_every_standby_group_is_admitted():
    assert admitted(policy()) == ["g2", "g3"]


def test_keep_warm_groups_are_not_admitted():
    assert admitted(policy(keep_warm=1)) == ["g2"]
    assert admitted(policy(keep_warm=3)) == []


def test_the_run_grows_to_max_groups():
    assert admitted(policy(max_groups=3)) == ["g2"]
    assert admitted(policy(max_groups=2)) == []
    coming_back = ("training", "joining", "standby", "standby")
    assert admitted(policy(max_groups=3), state=coming_back) == ["g2"]


@pytest.mark.parametrize("state", ["paused", "joining", "left", "standby"])
def test_no_group_is_admitted_to_a_run_that_does_not_train(state):
    assert admitted(policy(), state=[state, "standby"]) == []


def test_a_group_is_admitted_when_all_its_workers_stand_by():
    group = ("a", "b", "b", "c", "c")
    state = ("training", "standby", "gone", "standby", "standby")
    assert admitted(policy(), group=group, state=state) == ["c"]


def test_a_group_on_a_cordoned_node_is_neither_admitted_nor_counted_as_warm():
    view = {"cordoned": ["n3"]}
    assert admitted(policy(), **view) == ["g2"]
    assert admitted(policy(keep_warm=1), **view) == []


def test_a_group_on_a_node_with_a_recent_fault_is_not_admitted():
    faults = [fault("n2", 700), fault("n3", 500)]
    assert admitted(policy(quiet_s=600.0), faults=faults) == ["g2"]
    assert admitted(policy(quiet_s=400.0), faults=faults) == ["g2", "g3"]


def test_a_fault_of_a_worker_on_an_unknown_node_excludes_its_group():
    faults = [fault("", 5, worker="w2")]
    view = {"node": ["", "", "", ""], "state": TWO_WAIT, "faults": faults}
    assert admitted(policy(), **view) == ["g3"]


def test_a_standby_is_proposed_again_after_again_s_and_a_new_one_at_once():
    membership = policy(again_s=60.0)
    seen = [
        admitted(membership, now_s=NOW_S + after_s, state=["training", state])
        for after_s, state in [(0, "standby"), (59, "standby"), (60, "standby"), (70, "training")]
    ]
    assert seen == [["g1"], [], ["g1"], []]
    assert admitted(membership, now_s=NOW_S + 80, state=["training", "standby"]) == ["g1"]


def test_the_cost_is_the_time_of_the_others_and_the_gain_that_of_its_own_gpus():
    costs = Costs(gpus_per_worker=8.0, migrate_s=2.0)
    view = fleet(
        group=["a", "b", "c", "s", "s"],
        state=["training", "training", "paused", "standby", "standby"],
        costs=costs,
    )
    (proposal,) = policy(horizon_s=3600.0, confidence=0.5).on_tick(view)
    assert proposal.action == AdmitGroup(group="s")
    assert proposal.gain_gpu_s == 2 * 8 * 3600.0
    assert proposal.cost_gpu_s == 2.0 * 2 * 8
    assert proposal.confidence == 0.5
    assert "from that of 3 groups to that of 4" in proposal.reason


# --- the network ---


def busy(share, after_s=0.0, **step):
    """Return a step of one second with this share of wire time, at 12.5 MB/s."""
    sent = {"wire_s": share, "sent_bytes": 1.25e7 * share}
    return {"step": {**STEP, **sent, **step}, "now_s": NOW_S + after_s}


FOUR_TRAIN = ["training"] * 4
FIFTH_WAITS = [*FOUR_TRAIN, "standby"]
TICK_S = 10


def usually(membership, share, ticks=360):
    """Show a number of ticks, by default an hour, of this network load and no standby."""
    for tick in range(-ticks, 0):
        assert not admitted(membership, state=FOUR_TRAIN, **busy(share, tick * TICK_S))
    return membership


def test_the_cost_includes_the_state_transfer():
    (proposal,) = policy().on_tick(fleet(state=FIFTH_WAITS, **busy(0.8)))
    assert proposal.cost_gpu_s == pytest.approx(2.0 * 4 + 96.0 * 0.8 * 4)
    assert proposal.reason.endswith(
        "their state (1.2 GB) takes 96 s of a network that is 80% busy: 307 GPU-s"
    )


@pytest.mark.slow
def test_a_group_waits_for_a_quieter_network_and_is_admitted_then():
    membership = usually(policy(), 0.2)
    for after_s in range(0, 40, TICK_S):
        assert not admitted(membership, state=FIFTH_WAITS, **busy(0.8, after_s))
    (proposal,) = membership.on_tick(fleet(state=FIFTH_WAITS, **busy(0.2, 40)))
    assert proposal.cost_gpu_s == pytest.approx(2.0 * 4 + 96.0 * 0.2 * 4)
    assert proposal.reason.endswith(
        "takes 96 s of a network that is 20% busy: 77 GPU-s; waited 40 s for a quieter network, "
        "40 GPU-s"
    )


@pytest.mark.slow
def test_a_group_waits_until_the_wait_has_cost_as_much_as_the_surplus():
    membership = usually(policy(), 0.2)
    more_gpu_s = 96.0 * (0.8 - 0.2) * 4
    waited_s = 0
    while not admitted(membership, state=FIFTH_WAITS, **busy(0.8, waited_s)):
        waited_s += TICK_S
    assert more_gpu_s <= waited_s < more_gpu_s + TICK_S


@pytest.mark.slow
def test_a_group_does_not_wait_if_the_network_is_always_this_busy():
    assert admitted(usually(policy(), 0.8), **busy(0.8)) == ["g2", "g3"]


@pytest.mark.slow
def test_a_group_that_returns_starts_its_wait_again():
    membership = usually(policy(), 0.2)
    gone_s = 200
    for after_s in range(0, 400, TICK_S):
        state = [*FOUR_TRAIN, "gone"] if after_s == gone_s else FIFTH_WAITS
        assert not admitted(membership, state=state, **busy(0.8, after_s))


@pytest.mark.slow
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=50), st.floats(0.0, 1.0))
def test_no_group_waits_longer_than_waiting_can_pay(shares, usual):
    membership = usually(policy(), usual, ticks=10)
    for tick, share in enumerate(shares):
        after_s = tick * TICK_S
        if admitted(membership, state=FIFTH_WAITS, **busy(share, after_s)):
            return
        met = [96.0 * 4 * one for one in shares[: tick + 1]]
        assert after_s < max(met)


@given(
    st.lists(st.sampled_from(["training", "standby", "joining", "gone"]), max_size=12),
    st.integers(0, 4),
    st.integers(0, 8),
)
def test_keep_warm_and_max_groups_are_never_violated(state, keep_warm, max_groups):
    membership = policy(keep_warm=keep_warm, max_groups=max_groups)
    groups = admitted(membership, state=state)
    if groups:
        assert state.count("standby") - len(groups) >= keep_warm
        there = state.count("training") + state.count("joining")
        assert not max_groups or there + len(groups) <= max_groups
