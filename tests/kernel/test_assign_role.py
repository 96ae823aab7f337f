"""A node gets another role: what is refused, and the order of its commands."""

from dataclasses import replace

import pytest

from tests.kernel.runs import START_NS, Calls, active, hello, make_kernel, node_agent
from torchloom_core.capabilities.assign_role import AssignRole
from torchloom_core.testing.small_run import SmallRun
from torchloom_core.wire.decisions import Issue, Notice, Outcome, Verdict
from torchloom_core.wire.operations import Drain, StartRole

TRAINERS = tuple(hello(f"{group}-0") for group in "ab")


def rollout(group, **changes):
    return hello(f"rollout-{group}-0", role="rollout", **{"node": f"node-{group}", **changes})


def carried_out(*hellos, group="a", to="rollout"):
    return SmallRun(hellos).carry_out(AssignRole(group=group, to=to))


def test_the_group_drains_before_its_node_starts_the_other_program():
    outputs = carried_out(*TRAINERS, node_agent("node-a"), node_agent("node-b"))
    commands = [one.command for one in outputs if isinstance(one, Issue)]
    assert [(one.worker, one.do) for one in commands] == [
        ("a-0", Drain()),
        ("node-agent-node-a-0", StartRole(role="rollout")),
    ]
    (outcome,) = (one for one in outputs if isinstance(one, Outcome))
    assert outcome.detail == "a drained, its nodes start role rollout"


@pytest.mark.parametrize(
    ("hellos", "group", "to", "why"),
    [
        ((), "a", "trainer", "group a has role trainer already"),
        ((), "a", "rollout", "node-a has no reachable node agent: need torchloom node-agent there"),
        (
            (node_agent("node-a"),),
            "a",
            "rolout",
            "node-a: need one of the roles trainer, rollout, was rolout",
        ),
        (
            (node_agent("node-a"), rollout("c", node="node-a")),
            "a",
            "rollout",
            "node-a also runs group rollout-c",
        ),
        ((node_agent("node-a"),), "c", "rollout", "no group is called 'c'"),
        (
            (node_agent("node-a"),),
            "node-agent-node-a",
            "trainer",
            "group node-agent-node-a is a node agent: name the group that its program has",
        ),
        (
            (rollout("c"), node_agent("node-c")),
            "rollout-c",
            "trainer",
            "need at least 1 group of role rollout left training, would be 0",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(hellos, group, to, why):
    outputs = carried_out(*TRAINERS, *hellos, group=group, to=to)
    (verdict,) = (one for one in outputs if isinstance(one, Verdict))
    assert why in verdict.reason
    assert not [one for one in outputs if isinstance(one, Issue)]


def test_no_policy_has_to_see_agents():
    kernel = make_kernel([replace(active("calls", Calls(lambda view: ())), roles=("trainer",))])

    def noticed(hello):
        outputs = kernel.step(hello, START_NS)
        return any(isinstance(one, Notice) and one.kind == "role" for one in outputs)

    assert not noticed(node_agent("node-a"))
    assert noticed(rollout("b"))
