"""A worker's id is opaque; where it stands is in its placement."""

import msgspec

from tests.kernel.runs import Run, hello, make_kernel, of
from torchloom_core.plugin import ChangeKnobs, DrainGroup, KnobSpec, Migrate, RewindRun
from torchloom_core.wire.codec import decode_event, encode
from torchloom_core.wire.decisions import Issue, Verdict
from torchloom_core.wire.messages import Hello
from torchloom_threadlet.identity import identify


def placed(worker: str, group: str, **changes) -> Hello:
    return msgspec.structs.replace(hello("any-0"), worker=worker, group=group, **changes)


def two_roles() -> Run:
    """Return a run whose ids say nothing: two groups that train, and one of rollouts."""
    run = Run(make_kernel())
    for worker, group in (("4711", "a"), ("x", "b")):
        run.feed(placed(worker, group, node=f"node-{group}"))
    run.feed(placed("zz", "rollout-0", role="rollout", node="node-r"))
    return run


def denied(run: Run, action) -> str:
    (verdict,) = of(Verdict, run.ask(action))
    return verdict.rule if not verdict.granted else ""


def test_commands_go_to_the_workers_of_a_group_whatever_their_ids():
    run = two_roles()
    outputs = run.ask(DrainGroup(group="a"))
    assert [issue.command.worker for issue in of(Issue, outputs)] == ["4711"]


def test_groups_of_another_role_do_not_keep_a_role_alive():
    run = two_roles()
    assert denied(run, DrainGroup(group="rollout-0")) == "quorum_minimum"
    assert denied(run, DrainGroup(group="a")) == ""
    assert denied(run, DrainGroup(group="b")) == "quorum_minimum"


def test_a_standby_takes_the_place_of_a_group_of_its_role():
    run = two_roles()
    run.feed(placed("s1", "s", state="standby", node="node-s"))
    assert denied(run, Migrate(group="rollout-0")) == "impossible"
    run.feed(placed("s2", "spare", state="standby", role="rollout", node="node-t"))
    outputs = run.ask(Migrate(group="rollout-0"))
    assert [issue.command.worker for issue in of(Issue, outputs)] == ["s2"]


def test_one_worker_does_not_change_the_role_of_a_group():
    run = two_roles()
    run.feed(placed("odd", "a", role="rollout"))
    run.feed(placed("4711", "a", node="node-a", generation=1))
    assert run.kernel.run.fleet.role_of("a") == "trainer"
    run.feed(placed("odd", "c", role="rollout", generation=1))
    assert [run.kernel.run.fleet.role_of(group) for group in "ac"] == ["trainer", "rollout"]


def test_a_group_leaves_at_one_step_though_another_role_cannot_vote():
    run, able = Run(make_kernel()), {"actuators": ("fenced_change", "drain")}
    for worker, group in (("4711", "a"), ("4712", "a"), ("x", "b")):
        run.feed(placed(worker, group, **able))
    run.feed(placed("zz", "rollout-0", role="rollout"))
    issues = of(Issue, run.ask(DrainGroup(group="a")))
    assert {type(issue.command.do).__name__ for issue in issues} == {"FencedChange"}


def test_a_change_at_one_step_concerns_the_roles_that_have_the_knob():
    run, knob = Run(make_kernel()), KnobSpec(name="clip_norm", kind="float", fence="run")
    able = {"knobs": (knob,), "values": {"clip_norm": 1.0}, "actuators": ("fenced_change",)}
    for worker, group in (("4711", "a"), ("x", "b")):
        run.feed(placed(worker, group, **able))
    run.feed(placed("zz", "rollout-0", role="rollout"))
    outputs = run.ask(ChangeKnobs(values={"clip_norm": 2.0}))
    assert [issue.command.worker for issue in of(Issue, outputs)] == ["4711", "x"]
    run.feed(placed("zy", "rollout-1", role="rollout", **able))
    assert denied(run, ChangeKnobs(values={"clip_norm": 3.0})) == "impossible"
    assert denied(run, RewindRun()) == "impossible"


def test_the_view_has_the_placement_in_columns():
    view = two_roles().kernel.fleet.view(1, {})
    assert view.group == ("a", "b", "rollout-0")
    assert view.role == ("trainer", "trainer", "rollout")
    assert view.stage.tolist() == [0, 0, 0]


def test_a_hello_without_a_role_is_of_a_trainer_of_one_stage():
    plain = msgspec.json.decode(encode(hello("a-0")))
    for field in ("role", "stage", "shard", "generation"):
        del plain[field]
    assert decode_event(msgspec.json.encode(plain)) == hello("a-0")


def test_a_group_of_another_role_has_the_role_in_its_name():
    environment = {"REPLICA_GROUP_ID": "0", "RANK": "3", "TORCHLOOM_STAGE": "1"}
    one = identify(environment)
    other = identify({**environment, "TORCHLOOM_ROLE": "rollout", "TORCHLOOM_STANDBY": "1"})
    assert (one.worker, one.placement.role, one.placement.stage) == ("0-3", "trainer", 1)
    assert (other.worker, other.placement.group) == ("rollout-0-3", "rollout-0")
    assert other.standby
    assert not one.standby
    old_way = identify({"TORCHLOOM_ROLE": "standby"})
    assert (old_way.placement.role, old_way.standby) == ("trainer", True)
