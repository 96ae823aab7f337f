"""A node that fails far more often than the others is avoided; a few failures do not suffice."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy.stats import gamma, poisson

from tests.kernel.runs import hello
from torchloom_core.config.schema import Costs
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.plugin import CordonNode, Fault, Migrate, NeedFaults
from torchloom_core.testing import view_of
from torchloom_core.testing.views import EPOCH_S
from torchloom_core.wire.events import NodeFault
from torchloom_policies.lemon_nodes import LemonNodesPolicy

DAY_S = 86_400.0
COSTS = Costs(gpus_per_worker=8, detect_s=60, restart_s=300, unsaved_s=1800, replace_s=600)
SOON_BACK = replace(COSTS, repair_s=0)
NODES = 40
CORDON = CordonNode(node="n7", lasts_s=30 * DAY_S)


def policy(**options):
    return LemonNodesPolicy(LemonNodesPolicy.Options(**options))


def fleet(faults=(), now_s=0.0, **view):
    """Return a view of forty nodes: groups of one, the last two of them standbys."""
    state = ["training"] * (NODES - 2) + ["standby"] * 2
    view = {"workers": NODES, "state": state, "costs": COSTS, **view}
    return view_of(now_s=EPOCH_S + now_s, faults=faults, **view)


def faults_of(node, *days_ago, **changes):
    return [
        Fault(
            worker="",
            node=node,
            kind="xid",
            ts_ns=round((EPOCH_S - ago * DAY_S) * 1e9),
            id=f"{node}@{ago}",
            **changes,
        )
        for ago in days_ago
    ]


def history(**nodes):
    faults = [fault for node, days in nodes.items() for fault in faults_of(node, *days)]
    return sorted(faults, key=lambda fault: fault.ts_ns)


LEMON = history(n7=(28, 20, 14, 9, 5, 2), n1=(29,), n2=(11,), n3=(4,))


def actions(proposals):
    return [proposal.action for proposal in proposals]


def test_a_node_with_a_history_is_cordoned_and_its_group_moved():
    judge = policy()
    (cordon,) = judge.on_tick(fleet(LEMON))
    (move,) = judge.on_tick(fleet(LEMON, 1.0, cordoned=["n7"]))
    assert cordon.action == CORDON
    assert move.action == Migrate(group="g7")
    assert cordon.confidence == pytest.approx(move.confidence, abs=1e-4)
    assert cordon.confidence > 0.9
    assert move.gain_gpu_s > cordon.gain_gpu_s > 0
    assert move.cost_gpu_s == pytest.approx(COSTS.migrate_s * 8 * (NODES - 2), rel=1e-5)
    assert cordon.reason.startswith("n7, which fails about ")
    assert "times as often as other nodes (6 incidents); " in cordon.reason


def test_a_few_failures_make_no_lemon():
    assert not list(policy().on_tick(fleet(history(n7=(9, 2), n1=(29,), n2=(11,)))))
    assert not list(policy().on_tick(fleet()))


def test_if_all_nodes_fail_often_none_is_a_lemon():
    often = {f"n{k}": (27, 21, 15, 9, 5, 2) for k in range(NODES)}
    assert not list(policy().on_tick(fleet(history(**often))))


def test_faults_close_together_are_one_incident_and_old_ones_weigh_less():
    burst = history(n7=[2 + k / 100 for k in range(6)], n1=(29,))
    assert not list(policy().on_tick(fleet(burst)))
    assert list(policy(incident_s=60.0).on_tick(fleet(burst)))
    long_ago = history(n7=[29 - k / 10 for k in range(4)], n1=(29.5,))
    lately = history(n7=[1 - k / 10 for k in range(4)], n1=(29.5,))
    assert not list(policy().on_tick(fleet(long_ago)))
    assert list(policy().on_tick(fleet(lately)))


def test_the_probability_is_that_of_the_gamma_posterior():
    judge = policy(memory_s=1e6 * DAY_S)  # nothing is forgotten: every weight is 1
    cordon = next(iter(judge.on_tick(fleet(history(n7=(28, 20, 14, 9))))))
    watched = 28 * DAY_S
    others = 1.0 / (DAY_S / 0.0065 + (NODES - 1) * watched)
    posterior = gamma(0.5 + 4, scale=1 / (0.5 / others + watched))
    assert cordon.confidence == pytest.approx(posterior.sf(3 * others), rel=1e-4)
    surplus = cordon.gain_gpu_s / (7 * DAY_S * (60 + 300 + 1800) * 8 * (NODES - 2))
    drawn = posterior.rvs(10**6, random_state=np.random.default_rng(1))
    assert surplus == pytest.approx(drawn[drawn > 3 * others].mean() - others, rel=3e-3)


def test_a_node_is_cordoned_again_only_after_another_incident():
    judge = policy()
    assert CORDON in actions(judge.on_tick(fleet(LEMON)))
    assert actions(judge.on_tick(fleet(LEMON, 60.0))) == [Migrate(group="g7")]
    assert not list(judge.on_tick(fleet(LEMON, 7200.0)))
    more = sorted([*LEMON, *faults_of("n7", -0.5)], key=lambda fault: fault.ts_ns)
    assert CORDON in actions(judge.on_tick(fleet(more, 0.6 * DAY_S)))


def test_a_group_stays_on_its_lemon_until_a_standby_on_another_node_is_there():
    no_standby = ["training"] * (NODES - 2) + ["gone"] * 2
    judge = policy()
    assert not list(judge.on_tick(fleet(LEMON, state=no_standby)))
    assert not list(judge.on_tick(fleet(LEMON, 60.0, cordoned=["n7", "n38", "n39"])))
    assert actions(judge.on_tick(fleet(LEMON, 120.0))) == [CORDON]
    assert actions(judge.on_tick(fleet(LEMON, 180.0, cordoned=["n7"]))) == [Migrate(group="g7")]


def test_a_standby_on_a_lemon_is_not_used():
    judge = policy(min_probability=0.8)
    both = history(n7=(28, 20, 14, 9, 5, 2), n38=(27, 19, 13, 8, 4, 1), n1=(29,))
    alone = {"state": ["training"] * (NODES - 2) + ["standby", "gone"], "costs": SOON_BACK}
    expected = [CordonNode(node="n38", lasts_s=30 * DAY_S)]
    assert actions(judge.on_tick(fleet(both, **alone))) == expected
    assert not list(judge.on_tick(fleet(both, 60.0, **alone)))
    sound = {"costs": SOON_BACK, "cordoned": ["n38"]}
    assert actions(judge.on_tick(fleet(both, 120.0, **sound))) == [CORDON]


def test_a_group_whose_move_does_not_pay_stays():
    dear = Costs(
        gpus_per_worker=8, detect_s=5, restart_s=30, unsaved_s=5, migrate_s=3600, repair_s=0
    )
    judge = policy()
    assert actions(judge.on_tick(fleet(LEMON, costs=dear))) == [CORDON]
    assert not list(judge.on_tick(fleet(LEMON, 60.0, costs=dear)))


# --- the cost of one node less ---


def standbys(waiting):
    return ["training"] * (NODES - waiting) + ["standby"] * waiting


def test_with_few_standbys_a_cordon_costs_the_time_of_the_node():
    costs = {}
    for waiting in (2, 3, 4):
        (cordon,) = policy().on_tick(fleet(LEMON, state=standbys(waiting)))
        assert cordon.action == CORDON
        costs[waiting] = cordon.cost_gpu_s
    assert costs[2] > costs[3] > costs[4] > 0
    # one standby remains after the move, and a failed node is away for a day
    others = (1.0 + sum(np.exp(-ago / 30) for ago in (29, 11, 4))) / (
        DAY_S / 0.0065 + (NODES - 1) * 30 * DAY_S * -np.expm1(-29 / 30)
    )
    missed = poisson.sf(1, others * (NODES - 2) * DAY_S)
    price = missed * (7 * DAY_S + COSTS.replace_s) * 8
    assert costs[2] == pytest.approx(price, rel=1e-6)


def test_a_run_with_one_standby_moves_its_group_without_a_cordon():
    assert actions(policy().on_tick(fleet(LEMON, state=standbys(1)))) == [Migrate(group="g7")]
    assert not list(policy().on_tick(fleet(LEMON, state="training")))


def test_the_second_of_two_lemons_costs_more_because_the_first_takes_a_standby():
    both = history(n7=(28, 20, 14, 9, 5, 2), n8=(28, 20, 14, 9, 5, 2), n1=(29,))
    first, second = policy(min_probability=0.8).on_tick(fleet(both, state=standbys(4)))
    assert {first.action.node, second.action.node} == {"n7", "n8"}
    assert second.cost_gpu_s > 2 * first.cost_gpu_s


def test_a_run_that_does_not_train_gets_no_proposal():
    assert not list(policy().on_tick(fleet(LEMON, state="standby")))


counts = st.lists(st.integers(0, 8), min_size=3, max_size=12)


@given(counts, st.floats(0.5, 0.99), st.floats(1.5, 10.0))
def test_every_proposal_is_confident_enough_and_pays(counts, sure, ratio):
    nodes = {f"n{k}": [1 + 3 * i for i in range(count)] for k, count in enumerate(counts)}
    judge = policy(min_probability=sure, ratio=ratio)
    worst = max(counts)
    state = ["training"] * 27 + ["standby"] * 13
    for proposal in judge.on_tick(fleet(history(**nodes), state=state, costs=SOON_BACK)):
        assert proposal.net_gpu_s > 0
        assert sure < proposal.confidence <= 1
        if isinstance(proposal.action, CordonNode):
            assert counts[int(proposal.action.node[1:])] > 0
    again = judge.on_tick(fleet(history(**nodes), state=state, costs=SOON_BACK))
    marked = {action.node for action in actions(again) if hasattr(action, "node")}
    if marked:
        assert all(f"n{k}" in marked for k, count in enumerate(counts) if count == worst)


gaps = st.floats(0.001, 9.0)


@given(st.lists(st.tuples(gaps, st.integers(0, 5), st.floats(0.0, 5.0)), min_size=1, max_size=40))
def test_a_policy_that_saw_faults_expire_decides_like_one_started_later(coming):
    needs = [NeedFaults(20 * DAY_S)]
    state = FleetState(needs, tick_s=600.0, stale_after_s=1e9, costs=SOON_BACK)
    watching, late = (policy(min_probability=0.01, ratio=1.1) for _ in range(2))

    def look(judge, now_s):
        now_ns = round((EPOCH_S + now_s) * 1e9)
        state.close_tick(now_ns)
        return list(judge.on_tick(state.view(now_ns, {})))

    def register(incarnation, **changes):
        for k in range(6):
            worker = hello(f"g{k}-0", incarnation=incarnation, node=f"n{k}", **changes)
            state.register(worker, round(EPOCH_S * 1e9))

    register(1, state="standby")
    for k in range(7):
        worker = hello(f"s{k}-0", node=f"m{k}", state="standby")
        state.register(worker, round(EPOCH_S * 1e9))
    assert not look(watching, 0.0)
    assert not look(late, 0.0)
    now_s = 0.0
    for number, (gap_days, k, late_days) in enumerate(coming):
        now_s += gap_days * DAY_S
        ts_ns = round((EPOCH_S + now_s - late_days * DAY_S) * 1e9)
        state.note_fault(NodeFault(node=f"n{k}", kind="xid", ts_ns=ts_ns, id=f"e{number}"))
        look(watching, now_s)
    register(2, state="training")
    assert look(watching, now_s + 7200.0) == look(late, now_s + 7200.0) != []
