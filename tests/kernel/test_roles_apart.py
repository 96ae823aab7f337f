"""A role's policies, limits and price: what other roles do changes nothing in them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.kernel.runs import (
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
)
from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.capabilities.pause import PauseRun
from torchloom_core.live.kernel.plugins.host import ActivePolicy
from torchloom_core.plugin import Alert, FleetView, Need, NeedNotes
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.decisions import Issue, Notice, Proposed, Verdict
from torchloom_core.wire.events import NodeFault
from torchloom_core.wire.messages import KnobSpec, Note

TRAINERS = ("g0-0", "g1-0", "g2-0")
ROLLOUTS = ("rollout-0-0", "rollout-1-0", "rollout-2-0")


def of_role(role, policy):
    return ActivePolicy(f"{role}.{policy.name}", policy, roles=(role,))


def roles(config="", *policies):
    run = Run(make_kernel(policies, config=config))
    for trainer, rollout in zip(TRAINERS, ROLLOUTS, strict=True):
        run.feed(hello(trainer))
        run.feed(hello(rollout, role="rollout"))
    return run


others = st.lists(
    st.one_of(
        st.builds(
            lambda worker, loss, state, step: telemetry(
                worker, {"loss": loss}, state=state, step=step
            ),
            st.sampled_from(ROLLOUTS),
            st.floats(0, 1e6),
            st.sampled_from(["training", "draining", "standby"]),
            st.integers(1, 1000),
        ),
        st.builds(
            lambda worker, incarnation: hello(worker, role="rollout", incarnation=incarnation),
            st.sampled_from(ROLLOUTS),
            st.integers(1, 4),
        ),
        st.builds(
            lambda worker: Note(run="run", worker=worker, incarnation=1, kind="fault", fields={}),
            st.sampled_from(ROLLOUTS),
        ),
    ),
    max_size=4,
)


@settings(max_examples=examples(60))
@given(st.lists(others, min_size=1, max_size=5))
def test_nothing_that_the_workers_of_a_role_do_is_seen_by_the_policies_of_another(rounds):
    def seen(view: FleetView):
        losses = view.window("loss", 3.0).tolist(), view.last_known("loss").tolist()
        counts = [view.note("mark", row) is not None for row in range(len(view))]
        ages = view.heartbeat_age_s.tolist(), view.progress_age_s.tolist(), view.step.tolist()
        knobs = sorted(view.knob_specs), view.knob("lr")
        text = repr([view.workers, view.state, losses, ages, counts, knobs, view.faults])
        yield proposal(Alert(worker="g0-0", text=text.replace("nan", "?")))

    def trainers(messages):
        policy = Calls(seen, [Need("loss", 3.0), NeedNotes(("mark",))])
        run = Run(make_kernel([ActivePolicy("p", policy, roles=("trainer",))]))
        for worker in TRAINERS:
            run.feed(hello(worker))
        for number, more in enumerate(messages):
            for one in more:
                run.feed(one)
            for worker in TRAINERS:
                run.feed(telemetry(worker, {"loss": 2.0 + number}, step=number))
            run.feed(NodeFault(node="n9", kind="xid", ts_ns=number, id=f"x{number}"))
            run.tick()
        return [proposed.proposal for proposed in run.all(Proposed)]

    assert trainers(rounds) == trainers([[]] * len(rounds))


def test_a_view_of_a_role_has_its_rows_its_knobs_and_the_faults_of_nodes():
    views = []
    policy = Calls(lambda view: views.append(view), [Need("loss"), NeedNotes(("mark",))])
    run = roles("", of_role("rollout", policy))
    own = KnobSpec(name="lr", kind="int")
    run.feed(hello("rollout-0-0", role="rollout", incarnation=2, knobs=(own,), values={"lr": 3}))
    run.feed(NodeFault(node="n9", kind="xid", ts_ns=run.now_ns, id="x"))
    run.exit("g0-0")
    run.exit("rollout-1-0")
    run.feed(Note(run="run", worker="rollout-2-0", incarnation=1, kind="mark", fields={}))
    run.report("rollout-2-0", metrics={"loss": 4.0}, step=7)
    (view,) = views
    assert view.workers == ROLLOUTS
    assert set(view.role) == {"rollout"}
    assert view.state == ("training", "gone", "training")
    np.testing.assert_array_equal(view.latest("loss"), [np.nan, np.nan, 4.0])
    assert (view.step[2], view.note("mark", 2).worker) == (7, "rollout-2-0")
    assert view.knob("lr") == [3, 0.1, 0.1]
    assert {fault.worker or fault.node for fault in view.faults} == {"n9", "rollout-1-0"}
    assert set(view.faults_of) == {"n9", "node-rollout-1"}
    run.tick()
    assert views[1].roster is view.roster
    assert views[1].faults is view.faults


def test_a_policy_of_one_role_acts_on_its_role():
    scripted = ScriptedPolicy()
    scripted.next = [
        proposal(ChangeKnob(knob="lr", value=0.2)),
        proposal(PauseRun()),
        proposal(ChangeKnob(knob="lr", value=0.2, worker="rollout-1-0")),
    ]
    run = roles("", of_role("rollout", scripted))
    proposed = [one.proposal.action for one in of(Proposed, run.tick())]
    assert [one.role or "" for one in proposed] == ["rollout", "rollout", ""]


def test_a_role_that_no_policy_sees_is_reported_once_and_a_policy_waits_for_its_role():
    calls = []
    unborn = of_role("judge", Calls(lambda view: calls.append(view)))
    run = roles("", replace_roles(active("p", ScriptedPolicy()), ("trainer",)), unborn)
    run.tick()
    notices = [notice.text for notice in run.all(Notice) if notice.kind == "role"]
    assert notices == [
        "no policy sees role rollout, the role of rollout-0-0: [roles.rollout.policies]"
    ]
    assert calls == []


def replace_roles(policy, roles):
    return ActivePolicy(policy.name, policy.policy, policy.mode, roles=roles)


FEW = """
[arbiter]
max_in_motion_share = 1.0
[roles.rollout]
min_groups = 0
max_in_motion_share = 0.5
[roles.trainer]
min_groups = 3
"""


@pytest.mark.parametrize(
    ("group", "also", "rule", "text"),
    [
        ("g0", (), "quorum_minimum", "need at least 3 groups left training, would be 2"),
        ("rollout-0", (), "scripted", ""),
        (
            "rollout-0",
            ("rollout-1", "rollout-2"),
            "in_motion_share",
            "need at most 50% of 3 groups of role rollout in motion, would be 3",
        ),
    ],
)
def test_each_role_has_limits_of_its_own(group, also, rule, text):
    able = {"actuators": ("drain", "fenced_change")}
    run = Run(make_kernel(config=FEW))
    for trainer, rollout in zip(TRAINERS, ROLLOUTS, strict=True):
        run.feed(hello(trainer, **able))
        run.feed(hello(rollout, role="rollout", **able))
    verdict = only(Verdict, run.ask(DrainGroup(group=group, also=also)))
    assert (verdict.rule, verdict.reason) == (rule, text) or verdict.granted


def test_of_two_roles_the_more_expensive_one_gets_the_only_move():
    config = """
    [arbiter]
    min_groups = 0
    max_in_motion_share = 1.0
    [arbiter.actions.drain]
    limit_per_hour = 1
    [roles.rollout]
    price = 0.25
    """
    scripted = ScriptedPolicy()
    run = roles(config, active("scripted", scripted))
    scripted.next = [
        proposal(DrainGroup(group="rollout-0"), gain=300.0),
        proposal(DrainGroup(group="g0"), gain=100.0),
    ]
    verdicts = of(Verdict, run.tick())
    found = [(one.action.group, one.granted, one.net_gpu_s) for one in verdicts]
    assert found == [("g0", True, 100.0), ("rollout-0", False, 75.0)]


def test_moves_of_one_role_do_not_open_the_breaker_of_another():
    config = "[arbiter]\nmin_groups = 0\nmax_in_motion_share = 1.0\ncooldown_s = 0"
    scripted = ScriptedPolicy()
    run = roles(config, active("scripted", scripted))
    for group in ("rollout-0", "g0", "rollout-1"):
        scripted.next = [proposal(DrainGroup(group=group))]
        for issue in of(Issue, run.tick()):
            run.ack(issue.command)
    granted = [verdict.granted for verdict in run.all(Verdict)]
    assert granted == [True, True, False]
