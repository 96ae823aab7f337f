import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.config.schema import Costs
from torchloom_core.plugin import AdmitGroup, Fault
from torchloom_core.testing import view_of
from torchloom_policies.membership import MembershipPolicy

NOW_S = 1_700_000_000.0
TWO_WAIT = ("training", "training", "standby", "standby")


def policy(**options):
    return MembershipPolicy(MembershipPolicy.Options(**options))


def admitted(policy, **view):
    proposals = policy.on_tick(view_of(now_s=view.pop("now_s", NOW_S), **view))
    return [proposal.action.group for proposal in proposals]


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


def test_every_group_that_stands_by_is_admitted():
    assert admitted(policy(), workers=4, state=TWO_WAIT) == ["g2", "g3"]


def test_as_many_as_asked_for_are_kept_warm():
    assert admitted(policy(keep_warm=1), workers=4, state=TWO_WAIT) == ["g2"]
    assert admitted(policy(keep_warm=3), workers=4, state=TWO_WAIT) == []


def test_the_run_grows_to_the_most_groups_that_it_may_have():
    assert admitted(policy(max_groups=3), workers=4, state=TWO_WAIT) == ["g2"]
    assert admitted(policy(max_groups=2), workers=4, state=TWO_WAIT) == []
    coming_back = ("training", "joining", "standby", "standby")
    assert admitted(policy(max_groups=3), workers=4, state=coming_back) == ["g2"]


@pytest.mark.parametrize("state", ["paused", "joining", "left", "standby"])
def test_nobody_is_admitted_to_a_run_that_does_not_train(state):
    assert admitted(policy(), workers=2, state=[state, "standby"]) == []


def test_a_group_is_admitted_when_all_its_workers_stand_by():
    group = ("a", "b", "b", "c", "c")
    state = ("training", "standby", "gone", "standby", "standby")
    assert admitted(policy(), workers=5, group=group, state=state) == ["c"]


def test_nobody_is_admitted_from_a_cordoned_node_nor_kept_warm_there():
    view = {"workers": 4, "state": TWO_WAIT, "cordoned": ["n3"]}
    assert admitted(policy(), **view) == ["g2"]
    assert admitted(policy(keep_warm=1), **view) == []


def test_nobody_is_admitted_from_a_node_that_had_a_fault_of_late():
    faults = [fault("n2", 700), fault("n3", 500)]
    assert admitted(policy(quiet_s=600.0), workers=4, state=TWO_WAIT, faults=faults) == ["g2"]
    assert admitted(policy(quiet_s=400.0), workers=4, state=TWO_WAIT, faults=faults) == ["g2", "g3"]


def test_a_fault_of_a_worker_whose_node_is_unknown_speaks_against_its_group():
    faults = [fault("", 5, worker="w2")]
    view = {"workers": 4, "node": ["", "", "", ""], "state": TWO_WAIT, "faults": faults}
    assert admitted(policy(), **view) == ["g3"]


def test_who_still_stands_by_is_proposed_again_after_a_while_and_who_stands_by_anew_at_once():
    membership = policy(again_s=60.0)
    seen = [
        admitted(membership, now_s=NOW_S + after_s, workers=2, state=["training", state])
        for after_s, state in [(0, "standby"), (59, "standby"), (60, "standby"), (70, "training")]
    ]
    assert seen == [["g1"], [], ["g1"], []]
    assert admitted(membership, now_s=NOW_S + 80, workers=2, state=["training", "standby"]) == [
        "g1"
    ]


def test_the_price_is_the_time_of_the_others_and_the_gain_that_of_its_own_gpus():
    costs = Costs(gpus_per_worker=8.0, migrate_s=2.0)
    view = view_of(
        workers=5,
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


@given(
    st.lists(st.sampled_from(["training", "standby", "joining", "gone"]), max_size=12),
    st.integers(0, 4),
    st.integers(0, 8),
)
def test_never_are_fewer_kept_or_more_let_in_than_asked_for(state, keep_warm, max_groups):
    membership = policy(keep_warm=keep_warm, max_groups=max_groups)
    groups = admitted(membership, workers=len(state), state=state)
    if groups:
        assert state.count("standby") - len(groups) >= keep_warm
        there = state.count("training") + state.count("joining")
        assert not max_groups or there + len(groups) <= max_groups
