"""Nobody new is put on a cordoned node, whoever asked for it, until it is uncordoned."""

import msgspec

from tests.kernel.runs import (
    Calls,
    Run,
    Says,
    active,
    hello,
    make_kernel,
    of,
    only,
    proposal,
    three_groups,
)
from torchloom_core.actions import CordonNode, Migrate, UncordonNode
from torchloom_core.codec import encode
from torchloom_core.decisions import (
    Control,
    Issue,
    NodeFault,
    Outcome,
    Recovered,
    Reply,
    Verdict,
)
from torchloom_core.requests import StopActions

CORDON = CordonNode(node="node-s")
UNCORDON = UncordonNode(node="node-s")


def test_a_cordon_is_done_at_once_and_has_an_outcome():
    run = three_groups(make_kernel())
    outputs = run.ask(CORDON)
    assert only(Verdict, outputs).rule == "person"
    outcome = only(Outcome, outputs)
    assert (outcome.result, outcome.detail) == ("done", "nobody new is put on node-s")
    assert only(Reply, outputs).ids == ()
    assert run.kernel.fleet.cordoned == {"node-s"}
    assert not run.kernel.operations.plans


def test_a_standby_on_a_cordoned_node_is_not_taken_until_it_is_uncordoned():
    run = three_groups(make_kernel(config="[arbiter]\nmax_in_motion_share = 1"))
    run.ask(CORDON)
    verdict = only(Verdict, run.ask(Migrate(group="a")))
    assert verdict.reason.startswith("no stand-by fits a: need as many workers, on other nodes")
    run.feed(hello("t-0", state="standby"))
    assert only(Issue, run.ask(Migrate(group="a"))).command.worker == "t-0"
    outcome = only(Outcome, run.ask(UNCORDON))
    assert outcome.detail == "node-s may be used again"
    assert only(Issue, run.ask(Migrate(group="b"))).command.worker == "s-0"


def test_policies_see_what_is_cordoned():
    seen = []
    kernel = make_kernel([active("calls", Calls(lambda view: seen.append(view.cordoned) or ()))])
    run = three_groups(kernel)
    run.tick()
    run.ask(CORDON)
    run.tick()
    assert seen == [frozenset(), {"node-s"}]


def refusal(run: Run, action) -> str:
    verdict = only(Verdict, run.ask(action))
    assert verdict.rule == "impossible"
    return verdict.reason


def test_only_nodes_that_are_known_are_cordoned_and_only_once():
    run = three_groups(make_kernel())
    assert refusal(run, CordonNode(node="node-t")).startswith("no node is called 'node-t'; did")
    assert refusal(run, UNCORDON) == "node 'node-s' is not cordoned; there are none"
    run.ask(CORDON)
    assert refusal(run, CORDON) == "node node-s is cordoned already"
    run.feed(NodeFault(node="spare-9", kind="xid", ts_ns=run.now_ns, id="e1"))
    assert only(Verdict, run.ask(CordonNode(node="spare-9"))).granted


def test_a_policy_may_cordon_one_node_and_then_only_a_share_and_a_person_any():
    says = Says()
    run = three_groups(make_kernel([active("says", says)], "[arbiter]\nmax_cordoned_share = 0.5"))
    says.next = [proposal(CordonNode(node=f"node-{group}")) for group in "abcs"]
    rules = [verdict.rule for verdict in of(Verdict, run.tick())]
    assert rules == ["net_gain", "net_gain", "cordoned_share", "cordoned_share"]
    run.ask(CORDON)
    assert len(run.kernel.fleet.cordoned) == 3


def test_cordons_outlive_the_weaver_and_the_kill_switch():
    run = three_groups(make_kernel())
    run.ask(CORDON)
    run.want(StopActions())
    control = msgspec.json.decode(encode(run.kernel.control()), type=Control)
    successor = Run(make_kernel())
    successor.feed(Recovered(epoch=2, control=control))
    assert successor.kernel.fleet.cordoned == {"node-s"}
    assert only(Verdict, successor.ask(UNCORDON)).rule == "kill_switch"
