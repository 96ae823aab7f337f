"""A fenced change is offered to all ranks, and withdrawn if one rejects it."""

import pytest

from tests.kernel.runs import Run, hello, make_kernel, of, only, telemetry
from torchloom_core.capabilities.checkpoint import SaveCheckpoint
from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.capabilities.pause import PauseRun
from torchloom_core.capabilities.rewind import RewindRun
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.wire.actions import ChangeKnob, ChangeKnobs, Guard
from torchloom_core.wire.decisions import Issue, Judged, Outcome, Proposed, Verdict
from torchloom_core.wire.events import Recovered
from torchloom_core.wire.messages import KnobSpec
from torchloom_core.wire.operations import (
    Checkpoint,
    Drain,
    FencedChange,
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


def rank_hello(worker, **changes):
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
        run.feed(rank_hello(worker))
    return run


def sent(outputs, operation=FencedChange):
    return [
        issue.command for issue in of(Issue, outputs) if isinstance(issue.command.do, operation)
    ]


def ack_all(run, commands, status="applied", step=10, **changes):
    acks = [run.ack(command, status, step=step, **changes) for command in commands]
    return [output for outputs in acks for output in outputs]


def reason(run, action):
    return only(Verdict, run.ask(action)).reason


def test_several_knobs_are_one_change_and_the_outcome_has_the_step(run):
    commands = sent(run.ask(ChangeKnobs(values={"lr": 1, "mode": "bf16"})))
    assert {command.worker for command in commands} == set(WORKERS)
    assert all(c.do.do == SetKnobs(values={"lr": 1.0, "mode": "bf16"}) for c in commands)
    assert len({command.do.number for command in commands}) == 1
    outcome = only(Outcome, ack_all(run, commands, step=12))
    assert outcome.result == "done"
    assert outcome.detail == "lr = 1, mode = 'bf16' on 3 workers at step 12"


def test_a_single_run_fenced_knob_is_offered_to_all_ranks(run):
    commands = sent(run.ask(ChangeKnob(knob="lr", value=0.2)))
    assert [command.do.do for command in commands] == [SetKnobs(values={"lr": 0.2})] * 3
    assert only(Outcome, ack_all(run, commands)).detail == "lr = 0.2 on 3 workers at step 10"


def test_a_pause_is_fenced_only_if_all_ranks_can_agree(run):
    assert [command.do.do for command in sent(run.ask(PauseRun()))] == [Pause()] * 3
    other = Run(make_kernel())
    other.feed(rank_hello("a-0"))
    other.feed(rank_hello("b-0", actuators=("drain",)))
    assert len(sent(other.ask(PauseRun()), Pause)) == 2


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
            "guard: no training worker reports loss",
        ),
        (
            ChangeKnobs(values={"lr": 0.2}, guard=Guard(metric="bleu")),
            "guard: need a metric of guard.metrics (loss, grad_norm, update_norm, step_time_s), "
            "was 'bleu'",
        ),
    ],
)
def test_an_impossible_change_is_denied_and_nothing_is_sent(run, action, why):
    outputs = run.ask(action)
    assert why in only(Verdict, outputs).reason
    assert not sent(outputs)


def test_a_knob_that_differs_or_is_missing_on_one_rank_is_refused(run):
    run.feed(rank_hello("d-0", knobs=(LR,)))
    assert "but d-0 does not have it" in reason(run, ChangeKnobs(values={"mode": "bf16"}))
    wider = KnobSpec(name="lr", kind="float", low=0.0, high=9.0, fence="run")
    run.feed(rank_hello("d-0", knobs=(wider, MODE)))
    assert "but d-0 declares it differently" in reason(run, ChangeKnobs(values={"lr": 0.2}))


def test_a_change_that_one_rank_rejects_is_withdrawn_and_undone(run):
    first, *others = sent(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    outputs = run.ack(first, "rejected", detail="no bf16 here")
    letting_go = sent(outputs, Withdraw)
    assert {command.worker for command in letting_go} == {command.worker for command in others}
    assert not of(Outcome, outputs)  # some ranks may just have agreed
    assert not sent(ack_all(run, letting_go), Withdraw)
    outcome = only(Outcome, ack_all(run, others, "rejected", detail="withdrawn"))
    assert outcome.result == "undone"
    assert "no bf16 here" in outcome.detail
    assert run.kernel.run.desired.values("mode") == []


def test_a_change_is_done_if_only_a_new_rank_rejected_it(run):
    commands = sent(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    ack_all(run, commands[:1], "rejected", detail="it came late")
    assert only(Outcome, ack_all(run, commands[1:], step=5)).result == "done"


def test_a_change_that_failed_on_one_rank_is_undone(run):
    commands = sent(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    outputs = ack_all(run, commands[:2]) + ack_all(run, commands[2:], "failed", detail="no memory")
    outcome = only(Outcome, outputs)
    assert (outcome.result, outcome.detail) == ("undone", f"{commands[2].id} failed: no memory")


def test_a_rank_that_dies_is_not_waited_for(run):
    commands = sent(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    ack_all(run, commands[:2], step=7)
    assert only(Outcome, run.exit(commands[2].worker)).result == "done"


def test_an_unreachable_rank_is_not_waited_for_once_another_applied_it(run):
    commands = sent(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    outputs = []
    for _ in range(15):
        for worker in WORKERS:
            if worker != commands[2].worker:
                run.report(worker)
        outputs += run.tick()
    assert not of(Outcome, outputs)
    outputs = ack_all(run, commands[:2], step=7)
    assert only(Outcome, outputs).detail == "mode = 'bf16' on 3 workers at step 7"


def test_a_change_waits_for_the_one_before(run):
    first = sent(run.ask(ChangeKnobs(values={"lr": 0.2})))
    assert not sent(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    assert not sent(run.ask(ChangeKnobs(values={"lr": 0.3})))
    second = sent(ack_all(run, first))
    assert [command.do.do for command in second] == [SetKnobs(values={"mode": "bf16"})] * 3
    third = sent(ack_all(run, second))
    assert [command.do.do for command in third] == [SetKnobs(values={"lr": 0.3})] * 3
    numbers = [commands[0].do.number for commands in (first, second, third)]
    assert numbers == sorted(numbers)
    assert only(Outcome, ack_all(run, third)).result == "done"


def test_a_rank_that_joins_during_the_offer_is_offered_the_change(run):
    commands = sent(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    run.feed(rank_hello("d-0"))
    (late,) = sent(run.tick())
    assert (late.worker, late.do) == ("d-0", commands[0].do)
    assert not sent(run.tick())
    assert "on 4 workers" in only(Outcome, ack_all(run, [*commands, late])).detail


def test_the_kill_switch_withdraws_a_change_and_the_acks_decide(run):
    commands = sent(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    ack_all(run, commands, "accepted")
    run.want(StopActions())
    letting_go = [c for c in run.commands() if isinstance(c.do, Withdraw)]
    assert {command.worker for command in letting_go} == set(WORKERS)
    assert only(Outcome, ack_all(run, commands, step=9)).result == "done"


def test_a_restarted_run_gets_the_desired_values_once(run):
    ack_all(run, sent(run.ask(ChangeKnobs(values={"lr": 0.2}))))
    assert not sent(run.tick())
    for worker in WORKERS:
        run.feed(rank_hello(worker, incarnation=2))
    outputs = run.tick()
    assert [proposed.policy for proposed in of(Proposed, outputs)] == [RECONCILE]
    again = sent(outputs)
    assert [command.do.do for command in again] == [SetKnobs(values={"lr": 0.2})] * 3
    ack_all(run, again, "rejected")
    assert not sent(run.tick())


def test_a_joining_rank_without_the_others_values_gets_no_command(run):
    ack_all(run, sent(run.ask(ChangeKnobs(values={"lr": 0.2}))))
    assert not of(Issue, run.feed(rank_hello("d-0")))
    assert not of(Issue, run.tick())


def watch(run, loss, ticks, **changes):
    outputs = []
    for _ in range(ticks):
        for worker in WORKERS:
            run.feed(telemetry(worker, {} if loss is None else {"loss": loss}, **changes))
        outputs += run.tick()
    return outputs


def test_a_harmful_change_is_rolled_back_and_counts_as_failed(run):
    noise = (0.01, -0.01)
    for index in range(20):
        watch(run, 2.0 + noise[index % 2], 1)
    commands = sent(run.ask(ChangeKnobs(values={"lr": 0.9, "mode": "bf16"})))
    verdict = commands[0].cause
    ack_all(run, commands)
    outputs = watch(run, 5.0, 10)
    judged = only(Judged, outputs)
    assert judged.hurt
    assert judged.verdict == verdict
    proposed = only(Proposed, outputs)
    assert proposed.policy == GUARD
    assert proposed.proposal.action == ChangeKnobs(values={"lr": 0.1, "mode": "none"})
    back = sent(outputs)
    assert only(Outcome, ack_all(run, back, step=40)).result == "done"
    assert not of(Judged, watch(run, 9.0, 60))  # a rollback needs no guard
    assert run.kernel.arbiter.grants[verdict].failed


def test_a_scheduled_rate_is_rolled_back_to_what_it_was_when_it_was_changed(run):
    for index in range(20):
        watch(run, 2.0 + (0.01, -0.01)[index % 2], 1)
    ack_all(run, sent(run.ask(ChangeKnobs(values={"lr": 0.9}))), before={"lr": 0.07})
    proposed = only(Proposed, watch(run, 5.0, 10))
    assert proposed.proposal.action == ChangeKnobs(values={"lr": 0.07})


def test_a_harmless_change_stays(run):
    watch(run, 2.0, 20)
    ack_all(run, sent(run.ask(ChangeKnobs(values={"lr": 0.2}))))
    outputs = watch(run, 1.9, 40)
    assert not only(Judged, outputs).hurt
    assert not sent(outputs)


@pytest.mark.parametrize("ticks", [0, 12])
def test_a_metric_that_disappears_after_a_change_is_harm(run, ticks):
    watch(run, 2.0, 20)
    ack_all(run, sent(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    watch(run, 2.0, ticks)
    judged = only(Judged, watch(run, None, 40))
    assert judged.hurt
    assert judged.text.endswith("is no longer reported")


def test_one_running_worker_does_not_make_a_stall_harm(run):
    watch(run, 2.0, 20)
    ack_all(run, sent(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    outputs = []
    for tick in range(60):
        for worker in WORKERS:
            age_s = 0.0 if worker == "c-0" else float(tick)
            run.feed(telemetry(worker, {}, progress_age_s=age_s))
        outputs += run.tick()
    assert not any(judged.hurt for judged in of(Judged, outputs))


def test_a_later_change_is_rolled_back_with_a_watched_one(run):
    watch(run, 2.0, 20)
    ack_all(run, sent(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    ack_all(run, sent(run.ask(ChangeKnobs(values={"mode": "bf16"}))))
    first = only(Verdict, [v for v in of(Verdict, run.outputs) if "lr" in v.action.values])
    outputs = watch(run, 5.0, 10)
    assert only(Proposed, outputs).proposal.action.values == {"lr": 0.1, "mode": "none"}
    assert only(Judged, outputs).text.endswith(f"with it, as still watched: {first.proposal}")


def test_a_change_with_too_few_samples_before_is_not_judged(run):
    watch(run, 2.0, 2)
    ack_all(run, sent(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    judged = only(Judged, watch(run, 9.0, 10))
    assert judged.hurt is None
    assert judged.text == "too few values of loss before it"


def test_a_change_is_not_judged_on_samples_from_before_it(run):
    watch(run, 2.0, 40)
    ack_all(run, sent(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    outputs = watch(run, 2.0, 1)  # measured before the change, received after
    for _ in range(60):
        outputs += run.tick()
    assert not of(Judged, outputs)
    assert only(Judged, watch(run, 9.0, 10)).hurt


def test_a_change_during_a_restart_of_the_weaver_is_not_judged(run):
    watch(run, 2.0, 20)
    commands = sent(run.ask(ChangeKnobs(values={"lr": 0.9})))
    successor = Run(make_kernel(), epoch=2, now_ns=run.now_ns)
    successor.feed(Recovered(epoch=2, control=run.kernel.control()))
    for worker in WORKERS:
        successor.feed(rank_hello(worker))
    watch(successor, 9.0, 6)
    ack_all(successor, commands)
    assert only(Judged, watch(successor, 9.0, 10)).hurt


def test_a_fenced_change_is_refused_while_the_run_is_paused(run):
    ack_all(run, sent(run.ask(PauseRun())), step=7)
    assert "the run is paused, resume it first" in reason(run, ChangeKnobs(values={"lr": 0.2}))


TOGETHER = ("checkpoint", "fenced_change", "saves_together")


def saving_run(**hellos):
    run = Run(make_kernel())
    for group, actuators in hellos.items():
        for rank in (0, 1):
            run.feed(rank_hello(f"{group}-{rank}", actuators=actuators))
    return run


def test_ranks_that_save_together_do_so_at_one_step():
    commands = sent(saving_run(a=TOGETHER).ask(SaveCheckpoint()))
    assert [command.do.do for command in commands] == [Checkpoint()] * 2
    run = saving_run(a=TOGETHER)
    outcome = only(Outcome, ack_all(run, sent(run.ask(SaveCheckpoint(group="a")))))
    assert outcome.detail == "saved by 2 workers at step 10"


def test_ranks_that_save_together_do_not_save_where_one_cannot_agree():
    run = saving_run(a=TOGETHER, b=("checkpoint", "saves_together"))
    assert "needs all ranks to agree on a step: b-0, b-1 cannot" in reason(run, SaveCheckpoint())


def test_ranks_that_need_no_other_to_save_do_not_wait_for_one():
    run = saving_run(a=("checkpoint", "fenced_change"), b=("fenced_change",))
    assert len(sent(run.ask(SaveCheckpoint()), Checkpoint)) == 2


def test_paused_ranks_save_each_alone_as_they_are_at_one_step():
    run = saving_run(a=TOGETHER)
    ack_all(run, sent(run.ask(PauseRun())), step=7)
    assert len(sent(run.ask(SaveCheckpoint()), Checkpoint)) == 2


def test_a_silent_worker_that_cannot_agree_blocks_no_change(run):
    run.feed(rank_hello("d-0", actuators=("drain",)))
    change = ChangeKnobs(values={"lr": 0.2})
    assert "needs all ranks to agree on a step: d-0 cannot" in reason(run, change)
    watch(run, 2.0, 12)  # without a message from d-0
    assert [command.worker for command in sent(run.ask(change))] == [*WORKERS]
    run.tick()
    alone = Run(make_kernel())
    alone.feed(rank_hello("d-0", actuators=("drain",)))
    for _ in range(12):
        alone.tick()
    assert "d-0 cannot" in reason(alone, change)


def test_several_groups_are_drained_at_one_step_and_the_others_only_agree():
    run = Run(make_kernel(config="[arbiter]\nmax_in_motion_share = 1.0\n"))
    for worker in WORKERS:
        run.feed(rank_hello(worker))
    commands = sent(run.ask(DrainGroup(group="a", also=("b",))))
    assert {(c.do.do, c.do.groups) for c in commands} == {(Drain(), ("a", "b"))}
    assert only(Outcome, ack_all(run, commands, step=8)).detail == "a, b drained at step 8"
    states = dict(zip(run.kernel.fleet.row_of, run.kernel.fleet.state, strict=True))
    assert states == {"a-0": "left", "b-0": "left", "c-0": "training"}


def test_all_ranks_rewind_at_one_step_if_all_can(run):
    assert "a-0, b-0, c-0 cannot rewind" in reason(run, RewindRun(skip=5))
    for worker in WORKERS:
        run.feed(rank_hello(worker, actuators=("fenced_change", "rewind")))
    commands = sent(run.ask(RewindRun(skip=5)))
    assert [command.do.do for command in commands] == [Rewind(skip=5)] * 3
    outcome = only(Outcome, ack_all(run, commands, step=8))
    assert outcome.detail == "3 workers rewound at step 8, skipping 5 batches"


def test_a_change_on_unreachable_ranks_is_not_reported_as_undone(run):
    commands = sent(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    run.now_ns = commands[0].deadline_ns + 60 * SECOND_NS  # no message before and after
    assert not of(Outcome, [*run.tick(), *run.tick()])
    watch(run, 2.0, 1)  # the delayed telemetry and acks
    assert only(Outcome, ack_all(run, commands, step=9)).result == "done"


def test_a_change_without_acks_ends_after_its_deadline(run):
    commands = sent(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    silent = watch(run, 2.0, 66)  # a tick is a second, the deadline a minute away
    assert run.now_ns > commands[0].deadline_ns + 5 * SECOND_NS
    assert only(Outcome, silent).result == "undone"


def test_an_unreachable_rank_is_not_waited_for_after_the_deadline(run):
    commands = sent(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    run.now_ns = commands[0].deadline_ns
    outputs = ack_all(run, commands[1:], "rejected", detail="withdrawn, or past its deadline")
    for _ in range(40):
        outputs += run.tick()
    assert only(Outcome, outputs).result == "undone"


def test_a_change_that_most_ranks_rejected_is_not_done(run):
    commands = sent(run.ask(ChangeKnobs(values={"mode": "bf16"})))
    outputs = ack_all(run, commands[:1], step=2**53)
    outputs += ack_all(run, commands[1:], "rejected", detail="withdrawn")
    assert only(Outcome, outputs).result == "undone"
    assert run.kernel.run.desired.values("mode") == []


@pytest.mark.parametrize("loss", [float("inf"), 1.7e308])
def test_invalid_samples_before_a_change_are_no_harm(run, loss):
    watch(run, loss, 20)
    ack_all(run, sent(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    assert not only(Judged, watch(run, 2.0, 40)).hurt


def test_a_loss_that_becomes_infinite_after_a_change_is_harm(run):
    watch(run, 2.0, 20)
    ack_all(run, sent(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    assert only(Judged, watch(run, float("inf"), 10)).hurt


def test_a_rollback_that_is_impossible_is_tried_again_later(run):
    watch(run, 2.0, 20)
    ack_all(run, sent(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    run.feed(rank_hello("d-0", knobs=(MODE,)))  # lr cannot be changed while d-0 is there
    outputs = watch(run, 9.0, 8)
    assert only(Proposed, outputs).policy == GUARD
    assert not sent(outputs)
    run.exit("d-0")
    back = sent(watch(run, 9.0, 10))
    assert [command.do.do for command in back] == [SetKnobs(values={"lr": 0.1})] * 3
    ack_all(run, back)
    assert not sent(watch(run, 9.0, 60))


def test_changes_with_guards_of_two_metrics_are_both_watched(run):
    both = {"loss": 2.0, "grad_norm": 1.0}
    for _ in range(20):
        for worker in WORKERS:
            run.feed(telemetry(worker, both))
        run.tick()
    guard = Guard(metric="grad_norm")
    ack_all(run, sent(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    ack_all(run, sent(run.ask(ChangeKnobs(values={"mode": "bf16"}, guard=guard))))
    outputs = []
    for _ in range(40):
        for worker in WORKERS:
            run.feed(telemetry(worker, both))
        outputs += run.tick()
    assert len(of(Judged, outputs)) == 2


def test_a_nan_loss_on_most_ranks_after_a_change_is_harm(run):
    watch(run, 2.0, 20)
    ack_all(run, sent(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    outputs = []
    for _ in range(40):
        for worker in WORKERS:
            run.feed(telemetry(worker, {"loss": 2.0} if worker == "a-0" else {}))
        outputs += run.tick()
    assert only(Judged, outputs).hurt


def test_a_rewind_that_failed_on_one_rank_is_partial(run):
    for worker in WORKERS:
        run.feed(rank_hello(worker, actuators=("fenced_change", "rewind")))
    commands = sent(run.ask(RewindRun()))
    outputs = ack_all(run, commands[:2]) + ack_all(run, commands[2:], "failed")
    assert only(Outcome, outputs).result == "partial"


def test_a_value_for_one_worker_is_not_set_on_all_after_a_restart():
    run = Run(make_kernel())
    alone = KnobSpec(name="lr", kind="float", low=0.0, high=1.0)
    run.feed(rank_hello("a-0", knobs=(alone,)))
    for command in sent(run.ask(ChangeKnob(knob="lr", value=0.7, worker="a-0")), SetKnob):
        run.ack(command)
    for worker in WORKERS:
        run.feed(rank_hello(worker, incarnation=2))
    assert not sent(run.tick())


def test_a_watched_change_is_judged_by_the_next_weaver(run):
    watch(run, 2.0, 20)
    ack_all(run, sent(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    successor = Run(make_kernel(), epoch=2, now_ns=run.now_ns)
    successor.feed(Recovered(epoch=2, control=run.kernel.control()))
    for worker in WORKERS:
        successor.feed(rank_hello(worker, values={"lr": 0.9, "mode": "none"}))
    outputs = watch(successor, 9.0, 10)
    assert only(Judged, outputs).hurt
    assert only(Proposed, outputs).proposal.action.values == {"lr": 0.1}


def test_a_knob_that_is_run_fenced_on_one_worker_is_refused(run):
    other = Run(make_kernel())
    alone = KnobSpec(name="lr", kind="float", low=0.0, high=1.0)
    for worker in ("a-0", "b-0"):
        other.feed(rank_hello(worker, knobs=(alone,)))
    other.feed(rank_hello("c-0"))
    assert "run-fenced on c-0 but not on all" in reason(other, ChangeKnob(knob="lr", value=0.2))


def start_anew(run, step):
    """End all workers, and start the next incarnation of each at the step, untrained."""
    for worker in WORKERS:
        run.exit(worker)
        run.feed(rank_hello(worker, incarnation=2))
    return watch(run, 9.0, 10, incarnation=2, step=step)


def test_a_restarted_run_is_not_judged_by_samples_from_before(run):
    watch(run, 2.0, 20, step=4000)
    ack_all(run, sent(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    outputs = start_anew(run, step=3)
    judged = only(Judged, outputs)
    assert judged.hurt is None
    assert judged.text == "not watched: the run went back from step 4000 to 3"
    assert GUARD not in [proposed.policy for proposed in of(Proposed, outputs)]
    ack_all(run, sent(outputs), incarnation=2)
    ack_all(run, sent(run.ask(ChangeKnobs(values={"lr": 0.5}))), incarnation=2)
    assert only(Judged, watch(run, 20.0, 10, incarnation=2, step=5)).hurt


def test_a_change_after_a_rewind_is_judged_by_samples_since_then(run):
    watch(run, 2.0, 20, step=4000)
    commands = sent(run.ask(ChangeKnobs(values={"lr": 0.9})))
    watch(run, 9.0, 10, step=3)
    ack_all(run, commands)
    assert not only(Judged, watch(run, 9.0, 40, step=4)).hurt


def test_restoring_a_desired_value_is_not_judged(run):
    ack_all(run, sent(run.ask(ChangeKnobs(values={"lr": 0.2}))))
    for worker in WORKERS:
        run.feed(rank_hello(worker, incarnation=2, state="joining"))
    watch(run, 2.0, 20, incarnation=2, state="joining")
    outputs = watch(run, 2.0, 1, incarnation=2)
    assert [proposed.policy for proposed in of(Proposed, outputs)] == [RECONCILE]
    landed = ack_all(run, sent(outputs), incarnation=2)
    assert only(Outcome, landed).detail.endswith("at step 10")
    assert not of(Judged, watch(run, 9.0, 40, incarnation=2))


@pytest.mark.parametrize("gone", ["a-0", "b-0"])
def test_a_worker_that_returns_behind_the_others_is_no_restart_of_the_run(run, gone):
    watch(run, 2.0, 20, step=4000)
    ack_all(run, sent(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    run.exit(gone)
    run.feed(rank_hello(gone, incarnation=2))
    run.feed(telemetry(gone, {"loss": 9.0}, incarnation=2, step=3))
    assert only(Judged, watch(run, 9.0, 10, step=4000)).hurt


def test_the_next_weaver_detects_that_the_run_restarted_meanwhile(run):
    watch(run, 2.0, 20, step=4000)
    ack_all(run, sent(run.ask(ChangeKnobs(values={"lr": 0.9}))))
    successor = Run(make_kernel(), epoch=2, now_ns=run.now_ns)
    successor.feed(Recovered(epoch=2, control=run.kernel.control()))
    for worker in WORKERS:
        successor.feed(rank_hello(worker, incarnation=2, values={"lr": 0.9, "mode": "none"}))
    judged = only(Judged, watch(successor, 9.0, 10, incarnation=2, step=3))
    assert judged.hurt is None
