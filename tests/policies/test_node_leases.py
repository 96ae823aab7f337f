"""A role gives way to one of higher priority on its nodes, and comes back."""

import pytest

from torchloom_core.plugin import ResumeRun, SuspendRun
from torchloom_core.testing import view_of
from torchloom_policies.node_leases import NodeLeasesPolicy

OURS = {"batch": "node_leases"}


def shared_node(
    batch="training", suspended=None, urgent="training", node="n0", now_s=1.7e9, silent_s=0.0
):
    view = view_of(
        workers=3,
        now_s=now_s,
        role=["batch", "batch", "urgent"],
        node=["n0", "n1", node],
        state=[batch, batch, urgent],
        heartbeat_age_s=[0.0, 0.0, silent_s],
    )
    view.suspended = suspended or {}
    return view


@pytest.fixture
def policy():
    options = NodeLeasesPolicy.Options(priority={"urgent": 10, "batch": 1}, depth="stored")
    return NodeLeasesPolicy(options)


def test_the_lower_role_is_suspended_as_a_whole(policy):
    (one,) = policy.on_tick(shared_node())
    assert one.action == SuspendRun(depth="stored", role="batch")
    assert one.reason == "role urgent has priority on n0"
    assert one.gain_gpu_s == 10 * one.cost_gpu_s
    assert not list(policy.on_tick(shared_node()))  # not again at once


@pytest.mark.parametrize(
    "view",
    [
        {"node": "n2"},
        {"urgent": "gone"},
        {"silent_s": 70.0},
        {"batch": "joining"},
        {"batch": "paused", "suspended": {"batch": "person"}, "urgent": "gone"},
        {"suspended": {"urgent": "person"}},
    ],
)
def test_nothing_is_proposed_without_need(policy, view):
    for minute in range(3):
        assert not list(policy.on_tick(shared_node(**view, now_s=1.7e9 + 60 * minute)))


@pytest.mark.parametrize("batch", ["paused", "gone"])
def test_it_is_resumed_once_its_nodes_have_been_free(policy, batch):
    def at(seconds, urgent):
        view = shared_node(batch, OURS, urgent=urgent, now_s=1.7e9 + seconds)
        return [one.action for one in policy.on_tick(view)]

    assert not at(0, "training")
    assert not at(9, "gone")
    assert at(11, "gone") == [ResumeRun(role="batch")]
