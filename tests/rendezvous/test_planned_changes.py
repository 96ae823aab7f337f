"""Planned changes: a client decides on them, and while none does, the rendezvous does."""

import pytest

from torchloom_core.assignments.experts import imbalance, worker_loads
from torchloom_core.live.rendezvous.rendezvous import Rendezvous
from torchloom_core.live.rendezvous.settings import Settings
from torchloom_core.wire.generations import (
    Beat,
    Begin,
    ExpertLayer,
    ExpertState,
    Halt,
    Join,
    Leave,
    Regroup,
    Stop,
    Stopped,
)
from torchloom_core.wire.planned_changes import Change


class Run:
    """A rendezvous whose workers do at once what they are asked to."""

    def __init__(self, workers=4, standbys=0, replicas=2, saved=None):
        self.now_s, self.replicas, self.saved = 0.0, replicas, saved
        settings = Settings(workers=workers, standbys=standbys)
        self.rendezvous = Rendezvous(settings, 0.0, self.save, saved=saved)
        self.asked = []
        for number in range(workers):
            self.join(f"w{number}")

    def save(self, saved):
        self.saved = saved

    def join(self, name, **fields):
        join = Join(
            worker=name, incarnation=1, store="a:1", layers=6, replicas=self.replicas,
            micro_batches=4, layer_bytes=(1000,) * 6, node=f"n-{name}", **fields,
        )  # fmt: skip
        self.take(self.rendezvous.receive(name, join, self.now_s))

    def end(self, name):
        self.take(self.rendezvous.end(name, self.now_s))

    def wait(self, seconds):
        self.now_s += seconds
        for name in [*self.rendezvous.members, *self.rendezvous.standbys]:
            self.rendezvous._workers[name].seen_s = self.now_s
        self.take(self.rendezvous.tick(self.now_s))

    def decides(self):
        self.rendezvous.planned.decided_by_client(self.now_s)

    def change(self, generation, *without, vote=True):
        change = Change(id="c1", generation=generation, without=without)
        self.take(self.rendezvous.change(change, self.now_s), vote=vote)
        return self.outlook.answered

    @property
    def outlook(self):
        return self.rendezvous.outlook()

    def take(self, sends, *, vote=True):
        for name, message in sends:
            if isinstance(message, Begin):
                self.sent = message
            if isinstance(message, Regroup):
                self.asked.append(message.why)
            if isinstance(message, Stop) or (isinstance(message, Regroup) and vote):
                self.stop(name)

    def stop(self, name):
        present = self.rendezvous.assignment
        report = Stopped(
            generation=present.generation,
            committed=1,
            layers=present.layers_of(name),
            experts=present.experts_of(name),
        )
        self.take(self.rendezvous.receive(name, report, self.now_s))


@pytest.fixture
def run():
    run = Run()
    run.decides()
    run.end("w3")
    return run


def test_a_joiner_is_offered_to_a_client_that_decides_and_taken_in_once_it_says_so(run):
    run.join("w4")
    offer, number = run.outlook.offer, run.rendezvous.last_generation
    assert offer.why == "2 stages in each of 2 routes"
    assert offer.step_s < offer.present_step_s
    assert run.change(number).state == "done"
    assert "w4" in run.rendezvous.assignment.workers
    assert run.outlook.nodes["w4"] == "n-w4"


def test_the_rendezvous_takes_it_in_by_itself_once_the_client_is_silent(run):
    run.join("w4")
    run.wait(4.0)
    assert not run.asked
    run.wait(6.0)
    assert "w4" in run.rendezvous.assignment.workers


def test_a_change_of_an_old_generation_changes_nothing(run):
    run.join("w4")
    number, before = run.rendezvous.last_generation, run.rendezvous.assignment
    answered = run.change(number - 1)
    assert answered.state == "refused"
    assert answered.why == f"generation {number - 1} is over, {number} is present"
    assert run.rendezvous.assignment is before


def test_a_worker_that_is_to_have_no_part_hands_its_layers_over_and_stays_out():
    run = Run(workers=5, standbys=1)
    assert run.change(1, "w1").state == "done"
    assert run.rendezvous.assignment.why.startswith("without w1: ")
    assert run.outlook.left_out == ("w1",)
    run.end("w0")
    assert "w1" not in run.rendezvous.assignment.workers
    again = Run(workers=0, saved=run.saved)
    assert again.outlook.left_out == ("w1",)
    run.end("w1")
    run.join("w1")
    assert "w1" in run.rendezvous.assignment.workers


def test_a_worker_that_alone_holds_layers_stays():
    run = Run(workers=3, standbys=1, replicas=1)
    answered = run.change(1, "w1")
    assert answered.why == "no assignment without w1 holds all layers"
    assert run.rendezvous.last_generation == 1
    assert run.change(1, "w9").why == "w9: no such worker"
    assert run.change(1).why == "no other assignment makes steps faster"


def test_a_death_before_the_vote_ends_the_change_and_its_reason_is_the_answer():
    run = Run(workers=6, standbys=1)
    assert run.change(1, "w1", vote=False).state == "asked"
    run.end("w2")
    assert run.outlook.answered.state == "refused"
    assert run.outlook.answered.why == "w2 has ended"
    assert "w1" in run.rendezvous.assignment.workers
    assert run.outlook.left_out == ()


def test_experts_move_by_a_vote_once_their_tokens_are_measured():
    run = Run(workers=0)
    run.rendezvous.settings = Settings(workers=4)
    for number in range(4):
        run.replicas = 4
        run.join(f"w{number}", expert_layers=(ExpertLayer(8, 1000, per_worker=3),))
    tokens = (400.0, 390.0, 100.0, 90.0, 80.0, 70.0, 60.0, 50.0)
    state = ExpertState(tokens=tokens, seconds=0.05)
    for name in run.rendezvous.members:
        beat = Beat(committed=30, layer_s=(0.01,) * 6, expert_state=state)
        run.take(run.rendezvous.receive(name, beat, run.now_s))
    run.wait(6)
    assert set(run.asked) == {"experts placed by their tokens"}
    later = run.rendezvous.assignment
    assert later.generation == 2
    assert imbalance(worker_loads(tokens, later.experts, later.workers)) < 1.1


def test_what_was_asked_for_follows_though_times_have_changed_since():
    run = Run()

    def beats(slowness):
        for name in run.rendezvous.members:
            beat = Beat(committed=1, layer_s=(slowness if name == "w1" else 1.0,) * 6)
            run.take(run.rendezvous.receive(name, beat, run.now_s))

    run.now_s = 6.0
    beats(3.0)
    asked = {message.why for _, message in run.rendezvous.tick(run.now_s)}
    beats(1.0)
    for name in run.rendezvous.members:
        run.stop(name)
    assert {run.rendezvous.assignment.why} == asked


def test_a_worker_without_a_part_does_not_end_the_steps_of_the_others():
    run = Run(workers=5, standbys=1)
    (standby,) = run.rendezvous.standbys
    leave = Leave(finished=True, committed=10**6)
    run.take(run.rendezvous.receive(standby, leave, run.now_s))
    run.end("w1")
    assert run.rendezvous.phase == "running"
    assert run.sent.committed == 1


def test_a_standby_has_finished_once_all_workers_have_left_on_purpose():
    run = Run(workers=5, standbys=1)
    for name in run.rendezvous.members:
        sends = run.rendezvous.receive(name, Leave(committed=1), run.now_s)
    (halt,) = [one.message for one in sends if one.worker == "w4" and one.message]
    assert (type(halt), halt.status) == (Halt, "finished")
