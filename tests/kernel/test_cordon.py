"""No worker is started on a cordoned node until it is uncordoned or the cordon ends."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel.runs import (
    START_NS,
    Calls,
    Run,
    ScriptedPolicy,
    active,
    hello,
    make_kernel,
    of,
    only,
    proposal,
    telemetry,
    three_groups,
)
from torchloom_core.capabilities.cordon import CordonNode
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.capabilities.uncordon import UncordonNode
from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.live.kernel.plugins.host import ActivePlugins
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.live.trajectory.replay import replay
from torchloom_core.live.trajectory.summaries import summarise
from torchloom_core.live.trajectory.writer import TrajectoryWriter
from torchloom_core.live.weaver.status import describe
from torchloom_core.wire.capabilities import from_json
from torchloom_core.wire.codec import encode
from torchloom_core.wire.decisions import CordonOver, Issue, Outcome, Reply, Verdict
from torchloom_core.wire.events import Control, NodeFault, Recovered, Tick
from torchloom_core.wire.requests import Propose, Request, StopActions

CORDON = CordonNode(node="node-s")
UNCORDON = UncordonNode(node="node-s")


def test_a_cordon_is_done_at_once_and_has_an_outcome():
    run = three_groups(make_kernel())
    outputs = run.ask(CORDON)
    assert only(Verdict, outputs).rule == "person"
    outcome = only(Outcome, outputs)
    assert (outcome.result, outcome.detail) == ("done", "node-s cordoned")
    assert only(Reply, outputs).ids == ()
    assert run.kernel.fleet.cordons.nodes == {"node-s"}
    assert not run.kernel.run.plans.table


def test_the_reason_of_a_cordon_is_in_its_outcome_and_in_the_record():
    outputs = three_groups(make_kernel()).ask(CordonNode(node="node-s", reason="slow"))
    assert only(Outcome, outputs).detail == "node-s cordoned: slow"
    verdict = only(Verdict, outputs)
    assert "cordon node node-s: slow" in summarise("verdict", msgspec.to_builtins(verdict))


def test_a_standby_on_a_cordoned_node_is_not_taken_until_it_is_uncordoned():
    run = three_groups(make_kernel(config="[arbiter]\nmax_in_motion_share = 1"))
    run.ask(CORDON)
    verdict = only(Verdict, run.ask(Migrate(group="a")))
    assert verdict.reason.startswith(
        "no standby fits a: need as many reachable workers, on other nodes"
    )
    run.feed(hello("t-0", state="standby"))
    assert only(Issue, run.ask(Migrate(group="a"))).command.worker == "t-0"
    outcome = only(Outcome, run.ask(UNCORDON))
    assert outcome.detail == "node-s uncordoned"
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


def test_only_known_nodes_are_cordoned_and_only_once():
    run = three_groups(make_kernel())
    assert refusal(run, CordonNode(node="node-t")).startswith(
        "need a node that has had a worker or a reported fault, was 'node-t'; did you"
    )
    assert refusal(run, UNCORDON) == "node 'node-s' is not cordoned; there are none"
    run.ask(CORDON)
    assert refusal(run, CORDON) == "node node-s is already cordoned, without an end"
    run.feed(NodeFault(node="spare-9", kind="xid", ts_ns=run.now_ns, id="e1"))
    assert only(Verdict, run.ask(CordonNode(node="spare-9"))).granted


def test_a_policy_may_cordon_one_node_and_then_only_a_share_and_a_person_any():
    scripted = ScriptedPolicy()
    run = three_groups(
        make_kernel([active("scripted", scripted)], "[arbiter]\nmax_cordoned_share = 0.5")
    )
    scripted.next = [proposal(CordonNode(node=f"node-{group}")) for group in "abcs"]
    rules = [verdict.rule for verdict in of(Verdict, run.tick())]
    assert rules == ["net_gain", "net_gain", "cordoned_share", "cordoned_share"]
    run.ask(CORDON)
    assert len(run.kernel.fleet.cordons.nodes) == 3


def succeed(run: Run) -> Run:
    """Return the run with a new kernel that has only the stored state."""
    control = from_json(encode(run.kernel.control()), Control)
    successor = Run(make_kernel(), now_ns=run.now_ns)
    successor.feed(Recovered(epoch=run.kernel.commands.epoch + 1, control=control))
    return successor


def test_cordons_survive_a_restart_and_the_kill_switch():
    run = three_groups(make_kernel())
    run.ask(CORDON)
    run.want(StopActions())
    successor = succeed(run)
    assert successor.kernel.fleet.cordons.nodes == {"node-s"}
    assert only(Verdict, successor.ask(UNCORDON)).rule == "kill_switch"


# --- cordons that end ---


def for_s(seconds: float) -> CordonNode:
    return CordonNode(node="node-s", lasts_s=seconds)


def test_a_cordon_is_over_at_the_first_tick_at_or_after_its_end():
    run = three_groups(make_kernel())
    detail = only(Outcome, run.ask(for_s(90.0))).detail
    assert detail == "node-s cordoned for 90 s"
    assert not of(CordonOver, run.tick(89.9))
    assert only(Verdict, run.ask(Migrate(group="a"))).rule == "impossible"
    run.feed(telemetry("s-0", state="standby"))
    assert "cordon.node-s" in run.stored
    over = run.tick(0.1)
    assert "cordon.node-s" not in run.stored
    assert only(CordonOver, over) == CordonOver(node="node-s")
    assert summarise("cordon_over", msgspec.to_builtins(only(CordonOver, over))) == (
        "node node-s is uncordoned: its cordon has expired"
    )
    assert only(Issue, run.ask(Migrate(group="a"))).command.worker == "s-0"
    assert not of(CordonOver, run.tick(1000.0))


def test_policies_see_the_node_again_at_the_tick_at_which_its_cordon_is_over():
    seen = []
    kernel = make_kernel([active("calls", Calls(lambda view: seen.append(view.cordoned) or ()))])
    run = three_groups(kernel)
    run.ask(for_s(2.0))
    run.tick()
    run.tick()
    assert seen == [{"node-s"}, frozenset()]


def test_the_longer_of_two_cordons_counts():
    run = three_groups(make_kernel())
    end = moment_text(run.now_ns + 90 * SECOND_NS)
    run.now_ns += 10**6
    run.ask(for_s(90.0))
    assert refusal(run, for_s(60.0)) == f"node node-s is already cordoned, until {end}"
    assert only(Verdict, run.ask(for_s(120.0))).granted
    assert not of(CordonOver, run.tick(100.0))
    assert only(Verdict, run.ask(CORDON)).granted
    assert not of(CordonOver, run.tick(10_000.0))
    assert refusal(run, for_s(1e9)).endswith("already cordoned, without an end")


def test_a_cordon_that_was_lifted_by_hand_does_not_end_the_next_one():
    run = three_groups(make_kernel())
    run.ask(for_s(90.0))
    run.ask(UNCORDON)
    run.ask(CORDON)
    run.tick(90.0)
    assert run.kernel.fleet.cordons.nodes == {"node-s"}


def test_a_cordon_ends_while_actions_are_stopped():
    run = three_groups(make_kernel())
    run.ask(for_s(90.0))
    run.want(StopActions())
    assert only(CordonOver, run.tick(90.0))


def test_a_stored_cordon_without_an_end_has_no_end():
    control = from_json(b'{"cordoned": ["node-s"]}', Control)
    run = three_groups(make_kernel())
    run.feed(Recovered(epoch=2, control=control))
    run.tick(1e6)
    assert run.kernel.fleet.cordons.nodes == {"node-s"}
    assert encode(CORDON) == b'{"kind":"cordon","node":"node-s"}'


def test_the_status_has_the_end_of_a_cordon():
    run = three_groups(make_kernel())
    run.ask(for_s(90.0))
    run.ask(CordonNode(node="node-a"))
    plugins = ActivePlugins((), {})
    status = describe(run.kernel, Config(), plugins, now_ns=run.now_ns, malformed=0, log="")
    assert status.cordoned == ("node-a", "node-s")
    assert status.cordoned_until_ns == {"node-s": run.now_ns + 90 * SECOND_NS}


NODES = ("node-a", "node-b", "node-s")
happenings = st.one_of(
    st.builds(
        CordonNode,
        node=st.sampled_from(NODES),
        lasts_s=st.sampled_from([None, 0.5, 7.0, 30.0, 31.0]),
    ),
    st.builds(UncordonNode, node=st.sampled_from(NODES)),
    st.sampled_from(["tick", "tick", "restart", "stop"]),
)


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 7.0, 15.0]), happenings), max_size=30))
def test_a_cordon_ends_exactly_at_its_time(script):
    run, stopped = three_groups(make_kernel()), False
    end_s: dict[str, float] = {}
    now_s = 0.0
    for after_s, happening in script:
        now_s += after_s
        run.now_ns += round(after_s * SECOND_NS)
        match happening:
            case "tick":
                over = {o.node for o in of(CordonOver, run.tick(0.0))}
                assert over == {node for node, end in end_s.items() if end <= now_s}
                end_s = {node: end for node, end in end_s.items() if node not in over}
            case "restart":
                run = succeed(run)
                for group in "abcs":
                    run.feed(hello(f"{group}-0", state="standby" if group == "s" else "training"))
            case "stop":
                run.want(StopActions())
                stopped = True
            case CordonNode(node=node, lasts_s=lasts_s):
                run.ask(happening)
                if not stopped:
                    end = float("inf") if lasts_s is None else now_s + lasts_s
                    end_s[node] = max(end, end_s.get(node, 0.0))
            case UncordonNode(node=node):
                run.ask(happening)
                if not stopped:
                    end_s.pop(node, None)
        assert run.kernel.fleet.cordons.nodes == end_s.keys()


def test_a_trajectory_with_an_expired_cordon_replays_bit_for_bit(tmp_path):
    inputs = [
        Recovered(epoch=1),
        hello("s-0"),
        Request(id="r1", want=Propose(action=for_s(1.5))),
        Tick(),
        Tick(),
    ]
    kernel, writer = make_kernel(), TrajectoryWriter(tmp_path, "run", 1, Config(), {}, START_NS)
    for second, message in enumerate(inputs):
        ts_ns = START_NS + second * SECOND_NS
        writer.event(message, ts_ns, kernel.step(message, ts_ns))
    writer.close()
    assert not kernel.fleet.cordons.nodes
    (record,) = read_epochs(tmp_path)
    assert any(b"cordon_over" in output for *_, outputs in record.inputs() for output in outputs)
    assert replay(record, lambda _: make_kernel()).difference is None


def test_a_worker_without_a_node_adds_no_node():
    run = Run(make_kernel())
    run.feed(hello("a-0", node=""))
    assert only(Verdict, run.ask(CordonNode(node=""))).rule == "impossible"
