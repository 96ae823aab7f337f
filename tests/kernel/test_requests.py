"""Requests of people: an unusual value needs confirmation, and a repeated one is done once."""

import msgspec
import pytest

from tests.kernel.runs import (
    Run,
    ScriptedPolicy,
    active,
    hello,
    make_kernel,
    of,
    only,
    proposal,
    three_groups,
)
from torchloom_core.capabilities.pause import PauseRun
from torchloom_core.live.dispatch.answers import Answers
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.capabilities import from_json
from torchloom_core.wire.decisions import Issue, Proposed, Reply, Verdict
from torchloom_core.wire.events import Control, Recovered
from torchloom_core.wire.messages import KnobSpec
from torchloom_core.wire.requests import (
    Approve,
    ForgetKnob,
    Propose,
    Request,
    ResumeActions,
    StopActions,
)

WIDE = KnobSpec(name="lr", kind="float", low=0.0, high=100.0)
NO_REST = "[arbiter]\ncooldown_s = 0"


def run_at(*rates: float, kind: str = "float") -> Run:
    run = Run(make_kernel(config=NO_REST))
    spec = msgspec.structs.replace(WIDE, kind=kind)
    for number, rate in enumerate(rates):
        run.feed(hello(f"g{number}-0", knobs=(spec,), values={"lr": rate}))
    return run


def set_lr(value: float, worker: str | None = None, *, sure: bool = False) -> Propose:
    return Propose(action=ChangeKnob(knob="lr", value=value, worker=worker), sure=sure)


@pytest.mark.parametrize("value", [1.01, 20.0, 0.00099, 0.0])
def test_a_value_far_from_those_in_use_needs_confirmation(value):
    run = run_at(0.01, 0.1)
    reply = run.want(set_lr(value))
    assert (reply.ok, reply.text) == (
        False,
        "knob lr: need a value within a factor of 10 of those in use (0.01 to 0.1), "
        f'was {value}; to set it anyway: --yes ("sure": true)',
    )
    assert not run.all(Proposed)
    assert run.want(set_lr(value, sure=True)).ok


@pytest.mark.parametrize("value", [1.0, 0.001, 0.05])
def test_a_value_within_ten_times_of_those_in_use_is_set(value):
    assert run_at(0.01, 0.1).want(set_lr(value)).ok


def test_desired_values_count_as_in_use_and_ended_workers_do_not():
    run = run_at(0.01, 0.1)
    run.want(set_lr(50.0, sure=True))
    for command in run.commands():
        run.ack(command, "failed" if command.worker == "g0-0" else "applied")
    run.feed(hello("g1-0", knobs=(WIDE,), values={"lr": 0.1}))
    assert run.want(set_lr(60.0)).ok
    run = run_at(0.01, 50.0)
    run.exit("g1-0")
    assert not run.want(set_lr(60.0)).ok


def test_if_only_zero_is_in_use_any_value_is_set():
    assert run_at(0.0).want(set_lr(3.0)).ok


def test_an_integer_knob_has_a_wider_factor():
    assert run_at(1, kind="int").want(set_lr(64)).ok


def test_values_of_another_knob_are_not_in_use_for_this_one():
    run = Run(make_kernel(config=NO_REST))
    other = msgspec.structs.replace(WIDE, name="wd")
    run.feed(hello("a-0", knobs=(WIDE, other), values={"lr": 0.1, "wd": 50.0}))
    run.want(Propose(action=ChangeKnob(knob="wd", value=60.0), sure=True))
    assert not run.want(set_lr(60.0)).ok


def test_a_knob_of_one_worker_is_judged_by_what_that_worker_declares():
    run = run_at(0.01, 0.1)
    counts = msgspec.structs.replace(WIDE, kind="int")
    run.feed(hello("x-0", knobs=(counts,), values={"lr": 1}))
    assert run.want(set_lr(64, worker="x-0")).ok


def test_a_worker_that_has_no_such_knob_does_not_matter():
    run = run_at(0.01, 0.1)
    run.feed(hello("x-0", knobs=(), values={}))
    assert run.want(set_lr(0.05)).ok


def test_an_impossible_value_is_denied_without_a_confirmation():
    assert "denied by impossible" in run_at(0.1).want(set_lr(101.0)).text


def test_a_policy_needs_no_confirmation():
    scripted = ScriptedPolicy()
    run = Run(make_kernel([active("scripted", scripted)], NO_REST))
    run.feed(hello("g0-0", knobs=(WIDE,)))
    scripted.next = [proposal(ChangeKnob(knob="lr", value=50.0))]
    assert only(Verdict, run.tick()).granted


def test_a_request_that_is_sent_again_is_answered_again_and_not_done_again():
    run = three_groups(make_kernel(config=NO_REST))
    first = run.want(set_lr(0.2), sent_as="abc")
    outputs = len(run.outputs)
    assert run.want(set_lr(0.2), sent_as="abc") == first
    assert len(run.outputs) == outputs + 1
    assert run.want(set_lr(0.2), sent_as="abd").ids != first.ids


def test_so_is_a_refused_request_or_one_that_dropped_a_value():
    run = three_groups(make_kernel(config=NO_REST))
    refused = run.want(Approve(proposal="p1.9"), sent_as="a")
    run.want(set_lr(0.2))
    forgotten = run.want(ForgetKnob(knob="lr"), sent_as="b")
    assert (refused.ok, forgotten.ok) == (False, True)
    assert run.want(Approve(proposal="p1.9"), sent_as="a") == refused
    assert run.want(ForgetKnob(knob="lr"), sent_as="b") == forgotten


def restarted(run: Run) -> Run:
    """Return the run with the next Weaver, which has the stored state."""
    control = from_json(msgspec.json.encode(run.kernel.control()), Control)
    again = Run(make_kernel(config=NO_REST), epoch=2)
    again.feed(Recovered(epoch=2, control=control))
    for group in "abc":
        again.feed(hello(f"{group}-0"))
    return again


def test_an_answer_survives_a_restart():
    run = three_groups(make_kernel(config=NO_REST))
    first = run.want(Propose(action=PauseRun()), sent_as="abc")
    assert "answer.abc" in run.stored
    again = restarted(run)
    outputs = again.outputs[:]
    assert again.want(Propose(action=PauseRun()), sent_as="abc") == first
    assert not of(Issue, again.outputs[len(outputs) :])


def test_the_last_256_answers_survive_a_restart():
    run = three_groups(make_kernel(config=NO_REST))
    for number in range(200):
        run.want(Approve(proposal=str(number)), sent_as=f"n{number}")
    run = restarted(run)
    for number in range(200, 300):
        run.want(Approve(proposal=str(number)), sent_as=f"n{number}")
    restored = list(run.kernel.requests.answers.table)
    assert restored == [f"n{number}" for number in range(44, 300)]


def test_the_kill_switch_never_treats_a_request_as_repeated():
    run = three_groups(make_kernel())
    for _ in range(2):
        run.want(StopActions(), sent_as="stop")
        assert run.kernel.run.switch.stopped
        run.want(ResumeActions(), sent_as="resume")
        assert not run.kernel.run.switch.stopped
    assert len(run.all(Reply)) == 4


def test_a_repeated_answer_has_the_present_request_id():
    run = three_groups(make_kernel(config=NO_REST))
    wants = [Request(id=f"r{n}", want=set_lr(0.2), sent_as="abc") for n in (1, 2)]
    replies = [only(Reply, run.feed(request)) for request in wants]
    assert [reply.request for reply in replies] == ["r1", "r2"]
    assert replies[0].ids == replies[1].ids


def test_restored_answers_are_dropped_oldest_first():
    before = Answers()
    for name in "abc":
        request = Request(id="r1", want=StopActions(), sent_as=name)
        before.store(request, Reply(request="r1", ok=True, text=""))
    after = Answers()
    after.restore(reversed(list(before.table.values())))
    assert list(after.table) == ["a", "b", "c"]


def test_a_verdict_names_the_person_of_a_request():
    run = three_groups(make_kernel())
    verdict = only(Verdict, run.ask(PauseRun()))
    assert (verdict.policy, verdict.reason) == ("person", "requested by a person")
