"""What all ranks change at one step is offered to all, and withdrawn where one refuses."""

import pytest

from tests.kernel.runs import Run, hello, make_kernel, of, only, telemetry
from torchloom_core.clock import SECOND_NS
from torchloom_core.wire.actions import (
    ChangeKnob,
    ChangeKnobs,
    DrainGroup,
    Guard,
    PauseRun,
    RewindRun,
)
from torchloom_core.wire.events import Issue, Judged, Outcome, Proposed, Recovered, Verdict
from torchloom_core.wire.messages import (
    Drain,
    FencedChange,
    KnobSpec,
    Pause,
    Rewind,
    SetKnob,
    SetKnobs,
    Withdraw,
)
from torchloom_core.wire.requests import GUARD, RECONCILE, StopActions

LR = KnobSpec(name="lr", kind="float", low=0.0, high=1.0, fence="run")
MODE = KnobSpec(name="mode", kind="choice", choices=("none", "bf16"), fence="run")
ALONE = KnobSpec(name="verbose", kind="bool")
WORKERS = ("a-0", "b-0", "c-0")


def says_hello(worker, **changes):
    fields = {
        "knobs": (LR, MODE, ALONE),
        "values": {"lr": 0.1, "mode": "none", "verbose": False},
        "actuators": ("drain", "fenced_change"),
    }
    return hello(worker, **{**fields, **changes})


@pytest.fixture
def run():
    run = Run(make_kernel())
    for worker in WORKERS:
        run.feed(says_hello(worker))
    return run


def told(outputs, operation=FencedChange):
    return [
        issue.command for issue in of(Issue, outputs) if isinstance(issue.command.do, operation)
    ]


def ack_all(run, commands, status="applied", step=10, **changes):
    acks = [run.ack(command, status, step=step, **changes) for command in commands]
    return [output for outputs in acks for output in outputs]


def reason(run, action):
    return only(Verdict, run.ask(action)).reason


def test_several_knobs_are_offered_to_all_as_one_change_and_the_outcome_says_the_step(run):
    commands = told(run.ask(ChangeKnobs(values={"lr": 1, "mode": "bf16"})))
    assert {command.worker for command in commands} == set(WORKERS)
    assert all(c.do.do == SetKnobs(values={"lr": 1.0, "mode": "bf16"}) for c in commands)
    assert len({command.do.number for command in commands}) == 1
    outcome = only(Outcome, ack_all(run, commands, step=12))
    assert outcome.result == "done"
    assert outcome.detail == "lr = 1, mode = 'bf16' on 3 workers at step 12"


def test_a_run_fenced_knob_that_is_set_by_itself_is_offered_to_all_too(run):
    commands = told(run.ask(ChangeKnob(knob="lr", value=0.2)))
    assert [command.do.do for command in commands] == [SetKnobs(values={"lr": 0.2})] * 3
    assert only(Outcome, ack_all(run, commands)).detail == "lr = 0.2 on 3 workers at step 10"


def test_a_pause_is_offered_where_all_agree_and_told_to_each_where_one_cannot(run):
    assert [command.do.do for command in told(run.ask(PauseRun()))] == [Pause()] * 3
    other = Run(make_kernel())
    other.feed(says_hello("a-0"))
    other.feed(says_hello("b-0", actuators=("drain",)))
    assert len(told(other.ask(PauseRun()), Pause)) == 2


@pytest.mark.parametrize(
    ("action", "why"),
    [
        (ChangeKnobs(values={"lr": 7.0}), "knob lr: need at most 1, was 7.0"),
        (ChangeKnobs(values={"lr": 0.2, "mode": "int3"}), "need one of none, bf16, was 'int3'"),
        (ChangeKnobs(values={"lr": 0.2, "rate": 1}), "no knob is called 'rate'"),
        (ChangeKnobs(values={"lr": 0.2, "verbose": True}), "knob verbose is worker-fenced"),
        (ChangeKnob(knob="lr", value=0.2, worker="a-0"), "set it on all workers, not on one"),
        (
            ChangeKnobs(values={"lr": 0.2}, guard=Guard(metric="loss")),
            "guard: no worker that trains reports loss, so nothing can be watched",
        ),
        (
            ChangeKnobs(values={"lr": 0.2}, guard=Guard(metric="bleu")),
            "guard: need a metric of guard.metrics (loss, grad_norm, update_norm, step_time_s), "
            "was 'bleu'",
        ),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_sent(run, action, why):
    outputs = run.ask(action)
    assert why in only(Verdict, outputs).reason
    assert not told(outputs)


def test_a_knob_that_one_rank_lacks_or_declares_otherwise_is_refused(run):
    run.feed(says_hello("d-0", knobs=(LR,)))
    assert "and d-0 has none" in reason(run, ChangeKnobs(values={"mode": "bf16"}))
    wider = KnobSpec(name="lr", kind="float", low=0.0, high=9.0, fence="run")
    run.feed(says_hello("d-0", knobs=(wider, MODE)))
    assert "and d-0 declares it otherwise" in reason(run, ChangeKnobs(values={"lr": 0.2}))


def test_what_one_rank_cannot_do_is_withdrawn_from_the_others_and_undone_once_all_let_go(run):
    first, *others = told(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    outputs = run.ack(first, "rejected", detail="no bf16 here")
    letting_go = told(outputs, Withdraw)
    assert {command.worker for command in letting_go} == {command.worker for command in others}
    assert not of(Outcome, outputs)  # some may just have agreed
    assert not told(ack_all(run, letting_go), Withdraw)
    outcome = only(Outcome, ack_all(run, others, "rejected", detail="withdrawn"))
    assert outcome.result == "undone"
    assert "no bf16 here" in outcome.detail
    assert run.kernel.run.desired.values("mode") == []


def test_what_the_others_had_agreed_to_when_a_new_rank_refused_it_is_done(run):
    commands = told(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    ack_all(run, commands[:1], "rejected", detail="it came late")
    assert only(Outcome, ack_all(run, commands[1:], step=5)).result == "done"


def test_what_failed_on_one_rank_is_undone_though_others_made_it(run):
    commands = told(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    outputs = ack_all(run, commands[:2]) + ack_all(run, commands[2:], "failed", detail="no memory")
    outcome = only(Outcome, outputs)
    assert (outcome.result, outcome.detail) == ("undone", f"{commands[2].id} failed: no memory")


def test_whoever_dies_meanwhile_is_not_waited_for(run):
    commands = told(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    ack_all(run, commands[:2], step=7)
    assert only(Outcome, run.exit(commands[2].worker)).result == "done"


def test_whoever_is_silent_is_not_waited_for_once_another_has_done_it(run):
    commands = told(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    outputs = []
    for _ in range(15):
        for worker in WORKERS:
            if worker != commands[2].worker:
                run.hear(worker)
        outputs += run.tick()
    assert not of(Outcome, outputs)
    outputs = ack_all(run, commands[:2], step=7)
    assert only(Outcome, outputs).detail == "mode = 'bf16' on 3 workers at step 7"


def test_a_change_waits_until_the_one_before_it_is_over(run):
    first = told(run.ask(ChangeKnobs(values={"lr": 0.2})))
    assert not told(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    assert not told(run.ask(ChangeKnobs(values={"lr": 0.3})))
    second = told(ack_all(run, first))
    assert [command.do.do for command in second] == [SetKnobs(values={"mode": "bf16"})] * 3
    third = told(ack_all(run, second))
    assert [command.do.do for command in third] == [SetKnobs(values={"lr": 0.3})] * 3
    numbers = [commands[0].do.number for commands in (first, second, third)]
    assert numbers == sorted(numbers)
    assert only(Outcome, ack_all(run, third)).result == "done"


def test_who_comes_while_it_is_offered_is_offered_it_too(run):
    commands = told(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    run.feed(says_hello("d-0"))
    (late,) = told(run.tick())
    assert (late.worker, late.do) == ("d-0", commands[0].do)
    assert not told(run.tick())
    assert "on 4 workers" in only(Outcome, ack_all(run, [*commands, late])).detail


def test_the_kill_switch_withdraws_it_and_the_ranks_say_whether_it_was_done(run):
    commands = told(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    ack_all(run, commands, "accepted")
    run.want(StopActions())
    letting_go = [c for c in run.commands() if isinstance(c.do, Withdraw)]
    assert {command.worker for command in letting_go} == set(WORKERS)
    assert only(Outcome, ack_all(run, commands, step=9)).result == "done"


def test_a_run_that_began_anew_is_told_once_what_had_landed_before(run):
    ack_all(run, told(run.ask(ChangeKnobs(values={"lr": 0.2}))))
    assert not told(run.tick())
    for worker in WORKERS:
        run.feed(says_hello(worker, incarnation=2))
    outputs = run.tick()
    assert [proposed.policy for proposed in of(Proposed, outputs)] == [RECONCILE]
    again = told(outputs)
    assert [command.do.do for command in again] == [SetKnobs(values={"lr": 0.2})] * 3
    ack_all(run, again, "rejected")
    assert not told(run.tick())


def test_a_joiner_that_has_not_taken_the_others_knobs_yet_is_told_nothing(run):
    ack_all(run, told(run.ask(ChangeKnobs(values={"lr": 0.2}))))
    assert not of(Issue, run.feed(says_hello("d-0")))
    assert not of(Issue, run.tick())


def watch(run, loss, ticks, **changes):
    outputs = []
    for _ in range(ticks):
        for worker in WORKERS:
            run.feed(telemetry(worker, {} if loss is None else {"loss": loss}, **changes))
        outputs += run.tick()
    return outputs


def test_a_change_that_hurts_is_taken_back_on_all_and_counts_as_failed(run):
    noise = (0.01, -0.01)
    for index in range(20):
        watch(run, 2.0 + noise[index % 2], 1)
    commands = told(run.ask(ChangeKnobs(values={"lr": 0.9, "mode": "bf16"})))
    verdict = commands[0].cause
    ack_all(run, commands)
    outputs = watch(run, 5.0, 10)
    judged = only(Judged, outputs)
    assert judged.hurt
    assert judged.verdict == verdict
    proposed = only(Proposed, outputs)
    assert proposed.policy == GUARD
    assert proposed.proposal.action == ChangeKnobs(values={"lr": 0.1, "mode": "none"})
    back = told(outputs)
    assert only(Outcome, ack_all(run, back, step=40)).result == "done"
    assert not of(Judged, watch(run, 9.0, 60))  # what was before needs no guard
    assert run.kernel.arbiter.grants[verdict].failed


def test_a_change_that_does_no_harm_stays(run):
    watch(run, 2.0, 20)
    ack_all(run, told(run.ask(ChangeKnobs(values={"lr": 0.2}))))
    outputs = watch(run, 1.9, 40)
    assert not only(Judged, outputs).hurt
    assert not told(outputs)


def test_a_metric_that_is_reported_no_more_after_a_change_is_harm(run):
    watch(run, 2.0, 20)
    ack_all(run, told(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    judged = only(Judged, watch(run, None, 40))
    assert judged.hurt
    assert judged.text.endswith("is reported no more")


def test_a_metric_that_was_fine_for_a_while_and_then_is_no_number_is_harm(run):
    watch(run, 2.0, 20)
    ack_all(run, told(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    watch(run, 2.0, 12)
    judged = only(Judged, watch(run, None, 40))
    assert judged.hurt
    assert judged.text.endswith("is reported no more")


def test_one_worker_that_goes_on_alone_does_not_make_a_stall_of_all_harm(run):
    watch(run, 2.0, 20)
    ack_all(run, told(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    outputs = []
    for tick in range(60):
        for worker in WORKERS:
            age_s = 0.0 if worker == "c-0" else float(tick)
            run.feed(telemetry(worker, {}, progress_age_s=age_s))
        outputs += run.tick()
    assert not any(judged.hurt for judged in of(Judged, outputs))


def test_what_came_upon_a_change_that_still_is_watched_goes_back_with_it(run):
    watch(run, 2.0, 20)
    ack_all(run, told(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    ack_all(run, told(run.ask(ChangeKnobs(values={"mode": "bf16"}))))
    first = only(Verdict, [v for v in of(Verdict, run.outputs) if "lr" in v.action.values])
    outputs = watch(run, 5.0, 10)
    assert only(Proposed, outputs).proposal.action.values == {"lr": 0.1, "mode": "none"}
    assert only(Judged, outputs).text.endswith(f"with it, as still watched: {first.proposal}")


def test_a_change_of_which_too_little_was_seen_before_is_not_judged(run):
    watch(run, 2.0, 2)
    ack_all(run, told(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    judged = only(Judged, watch(run, 9.0, 10))
    assert judged.hurt is None
    assert judged.text == "too little was seen of loss before it"


def test_a_change_is_not_judged_on_what_was_measured_before_nothing_was_heard(run):
    watch(run, 2.0, 40)
    ack_all(run, told(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    outputs = watch(run, 2.0, 1)  # measured before it landed, heard after
    for _ in range(60):
        outputs += run.tick()
    assert not of(Judged, outputs)
    assert only(Judged, watch(run, 9.0, 10)).hurt


def test_a_change_that_landed_as_the_weaver_died_is_held_against_what_its_successor_never_saw(run):
    watch(run, 2.0, 20)
    commands = told(run.ask(ChangeKnobs(values={"lr": 0.9})))
    successor = Run(make_kernel(), epoch=2, now_ns=run.now_ns)
    successor.feed(Recovered(epoch=2, control=run.kernel.control()))
    for worker in WORKERS:
        successor.feed(says_hello(worker))
    watch(successor, 9.0, 6)
    ack_all(successor, commands)
    assert only(Judged, watch(successor, 9.0, 10)).hurt


def test_what_all_do_at_one_step_is_refused_while_the_run_is_paused(run):
    ack_all(run, told(run.ask(PauseRun())), step=7)
    assert "the run is paused, resume it first" in reason(run, ChangeKnobs(values={"lr": 0.2}))


def test_several_groups_are_drained_at_one_step_and_the_others_only_agree():
    run = Run(make_kernel(config="[arbiter]\nmax_in_motion_share = 1.0\n"))
    for worker in WORKERS:
        run.feed(says_hello(worker))
    commands = told(run.ask(DrainGroup(group="a", also=("b",))))
    assert {(c.do.do, c.do.groups) for c in commands} == {(Drain(), ("a", "b"))}
    assert only(Outcome, ack_all(run, commands, step=8)).detail == "a, b drained at step 8"
    states = dict(zip(run.kernel.fleet.row_of, run.kernel.fleet.state, strict=True))
    assert states == {"a-0": "left", "b-0": "left", "c-0": "training"}


def test_all_go_back_to_the_checkpoint_at_one_step_where_all_can(run):
    assert "a-0, b-0, c-0 cannot rewind" in reason(run, RewindRun(skip=5))
    for worker in WORKERS:
        run.feed(says_hello(worker, actuators=("fenced_change", "rewind")))
    commands = told(run.ask(RewindRun(skip=5)))
    assert [command.do.do for command in commands] == [Rewind(skip=5)] * 3
    outcome = only(Outcome, ack_all(run, commands, step=8))
    assert outcome.detail == "3 workers rewound at step 8, skipping 5 batches"


def test_what_may_have_been_done_by_those_that_cannot_be_heard_is_not_called_undone(run):
    commands = told(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    run.now_ns = commands[0].deadline_ns + 60 * SECOND_NS  # nothing came, and nothing comes
    assert not of(Outcome, [*run.tick(), *run.tick()])
    watch(run, 2.0, 1)  # what was sent meanwhile, and with it what they did
    assert only(Outcome, ack_all(run, commands, step=9)).result == "done"


def test_what_nobody_answers_that_can_be_heard_ends_some_time_after_its_deadline(run):
    commands = told(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    silent = watch(run, 2.0, 66)  # a tick is a second, the deadline a minute away
    assert run.now_ns > commands[0].deadline_ns + 5 * SECOND_NS
    assert only(Outcome, silent).result == "undone"


def test_who_is_silent_is_not_waited_for_once_others_let_go_at_the_deadline(run):
    commands = told(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    run.now_ns = commands[0].deadline_ns
    outputs = ack_all(run, commands[1:], "rejected", detail="withdrawn, or past its deadline")
    for _ in range(40):
        outputs += run.tick()
    assert only(Outcome, outputs).result == "undone"


def test_what_one_says_it_did_and_most_refused_is_not_done(run):
    commands = told(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    outputs = ack_all(run, commands[:1], step=2**53)
    outputs += ack_all(run, commands[1:], "rejected", detail="withdrawn")
    assert only(Outcome, outputs).result == "undone"
    assert run.kernel.run.desired.values("mode") == []


@pytest.mark.parametrize("loss", [float("inf"), 1.7e308])
def test_what_is_no_measurement_before_a_change_does_not_make_the_change_hurt(run, loss):
    watch(run, loss, 20)
    ack_all(run, told(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    assert not only(Judged, watch(run, 2.0, 40)).hurt


def test_a_loss_that_becomes_infinite_after_a_change_is_harm(run):
    watch(run, 2.0, 20)
    ack_all(run, told(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    assert only(Judged, watch(run, float("inf"), 10)).hurt


def test_what_hurt_is_taken_back_some_time_later_where_it_could_not_be_at_once(run):
    watch(run, 2.0, 20)
    ack_all(run, told(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    run.feed(says_hello("d-0", knobs=(MODE,)))  # lr cannot be changed while it is there
    outputs = watch(run, 9.0, 8)
    assert only(Proposed, outputs).policy == GUARD
    assert not told(outputs)
    run.exit("d-0")
    back = told(watch(run, 9.0, 10))
    assert [command.do.do for command in back] == [SetKnobs(values={"lr": 0.1})] * 3
    ack_all(run, back)
    assert not told(watch(run, 9.0, 60))


def test_changes_with_guards_of_two_metrics_are_both_watched(run):
    both = {"loss": 2.0, "grad_norm": 1.0}
    for _ in range(20):
        for worker in WORKERS:
            run.feed(telemetry(worker, both))
        run.tick()
    guard = Guard(metric="grad_norm")
    ack_all(run, told(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    ack_all(run, told(run.ask(ChangeKnobs(values={"mode": "bf16"}, guard=guard))))
    outputs = []
    for _ in range(40):
        for worker in WORKERS:
            run.feed(telemetry(worker, both))
        outputs += run.tick()
    assert len(of(Judged, outputs)) == 2


def test_a_loss_that_is_no_number_on_most_ranks_after_a_change_is_harm(run):
    watch(run, 2.0, 20)
    ack_all(run, told(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    outputs = []
    for _ in range(40):
        for worker in WORKERS:
            run.feed(telemetry(worker, {"loss": 2.0} if worker == "a-0" else {}))
        outputs += run.tick()
    assert only(Judged, outputs).hurt


def test_a_rewind_that_failed_on_one_rank_is_half_done(run):
    for worker in WORKERS:
        run.feed(says_hello(worker, actuators=("fenced_change", "rewind")))
    commands = told(run.ask(RewindRun()))
    outputs = ack_all(run, commands[:2]) + ack_all(run, commands[2:], "failed")
    assert only(Outcome, outputs).result == "partial"


def test_what_was_wanted_of_one_worker_alone_is_not_told_to_all_of_another_run():
    run = Run(make_kernel())
    alone = KnobSpec(name="lr", kind="float", low=0.0, high=1.0)
    run.feed(says_hello("a-0", knobs=(alone,)))
    for command in told(run.ask(ChangeKnob(knob="lr", value=0.7, worker="a-0")), SetKnob):
        run.ack(command)
    for worker in WORKERS:
        run.feed(says_hello(worker, incarnation=2))
    assert not told(run.tick())


def test_a_change_that_is_watched_is_judged_by_the_next_weaver_too(run):
    watch(run, 2.0, 20)
    ack_all(run, told(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    successor = Run(make_kernel(), epoch=2, now_ns=run.now_ns)
    successor.feed(Recovered(epoch=2, control=run.kernel.control()))
    for worker in WORKERS:
        successor.feed(says_hello(worker, values={"lr": 0.9, "mode": "none"}))
    outputs = watch(successor, 9.0, 10)
    assert only(Judged, outputs).hurt
    assert only(Proposed, outputs).proposal.action.values == {"lr": 0.1}


def test_a_knob_that_one_declares_for_the_run_is_not_set_on_the_others_alone(run):
    other = Run(make_kernel())
    alone = KnobSpec(name="lr", kind="float", low=0.0, high=1.0)
    for worker in ("a-0", "b-0"):
        other.feed(says_hello(worker, knobs=(alone,)))
    other.feed(says_hello("c-0"))
    assert "run-fenced on c-0 but not on all" in reason(other, ChangeKnob(knob="lr", value=0.2))


def start_anew(run, step):
    """End all workers, and have the next life of each begin at the step, untrained."""
    for worker in WORKERS:
        run.exit(worker)
        run.feed(says_hello(worker, incarnation=2))
    return watch(run, 9.0, 10, incarnation=2, step=step)


def test_a_run_that_began_anew_is_not_held_against_what_was_measured_before(run):
    watch(run, 2.0, 20, step=4000)
    ack_all(run, told(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    outputs = start_anew(run, step=3)
    judged = only(Judged, outputs)
    assert judged.hurt is None
    assert judged.text == "not watched over: the run went back from step 4000 to 3"
    assert GUARD not in [proposed.policy for proposed in of(Proposed, outputs)]
    ack_all(run, told(outputs), incarnation=2)
    ack_all(run, told(run.ask(ChangeKnobs(values={"lr": 0.5}))), incarnation=2)
    assert only(Judged, watch(run, 20.0, 10, incarnation=2, step=5)).hurt


def test_a_change_that_lands_after_the_steps_went_back_is_held_against_what_came_since(run):
    watch(run, 2.0, 20, step=4000)
    commands = told(run.ask(ChangeKnobs(values={"lr": 0.9})))
    watch(run, 9.0, 10, step=3)
    ack_all(run, commands)
    assert not only(Judged, watch(run, 9.0, 40, step=4)).hurt


def test_what_only_puts_back_a_knob_that_was_wanted_is_not_judged(run):
    ack_all(run, told(run.ask(ChangeKnobs(values={"lr": 0.2}))))
    for worker in WORKERS:
        run.feed(says_hello(worker, incarnation=2, state="joining"))
    watch(run, 2.0, 20, incarnation=2, state="joining")
    outputs = watch(run, 2.0, 1, incarnation=2)
    assert [proposed.policy for proposed in of(Proposed, outputs)] == [RECONCILE]
    landed = ack_all(run, told(outputs), incarnation=2)
    assert only(Outcome, landed).detail.endswith("at step 10")
    assert not of(Judged, watch(run, 9.0, 40, incarnation=2))


@pytest.mark.parametrize("gone", ["a-0", "b-0"])
def test_a_worker_that_comes_back_behind_the_others_is_no_run_that_began_anew(run, gone):
    watch(run, 2.0, 20, step=4000)
    ack_all(run, told(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    run.exit(gone)
    run.feed(says_hello(gone, incarnation=2))
    run.feed(telemetry(gone, {"loss": 9.0}, incarnation=2, step=3))
    assert only(Judged, watch(run, 9.0, 10, step=4000)).hurt


def test_the_next_weaver_knows_that_the_run_began_anew_meanwhile(run):
    watch(run, 2.0, 20, step=4000)
    ack_all(run, told(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    successor = Run(make_kernel(), epoch=2, now_ns=run.now_ns)
    successor.feed(Recovered(epoch=2, control=run.kernel.control()))
    for worker in WORKERS:
        successor.feed(says_hello(worker, incarnation=2, values={"lr": 0.9, "mode": "none"}))
    judged = only(Judged, watch(successor, 9.0, 10, incarnation=2, step=3))
    assert judged.hurt is None
