"""Programs that are split over workers, in the kernel: what is seen, and changes by request."""

import pytest

from tests.kernel.programs import OFFER, answered, outlook, program_seen
from tests.kernel.runs import make_kernel, only
from torchloom_core.capabilities.regroup import RegroupWorkers
from torchloom_core.wire.decisions import Notice, Outcome, Reply, Verdict
from torchloom_core.wire.events import Tick
from torchloom_core.wire.programs import ChangeWanted, ProgramSeen
from torchloom_core.wire.requests import Propose, Request

S = 1_000_000_000


class World:
    """A kernel that has seen a program."""

    def __init__(self):
        self.kernel = make_kernel()
        self.now_ns = 0
        self.step(program_seen())

    def step(self, message, seconds=1.0):
        self.now_ns += round(seconds * S)
        return list(self.kernel.step(message, self.now_ns))

    def ask(self, **fields):
        return self.step(Request(id="r1", want=Propose(action=RegroupWorkers(**fields))))

    @property
    def program(self):
        return self.kernel.fleet.programs.of["trainer"]


@pytest.fixture
def world():
    return World()


def test_each_generation_is_reported_with_its_reason_and_how_long_workers_waited(world):
    world.step(program_seen(phase="stopping"))
    found = world.step(
        program_seen(generation=2, why="replica 0: w4 for w1", cause="w1 has ended"), 0.25
    )
    text = "trainer: generation 2: replica 0: w4 for w1, after step 7; w1 has ended"
    assert only(Notice, found).text == text
    began = world.program.generations[-1]
    assert (began.number, began.took_s, began.cause) == (2, 0.25, "w1 has ended")
    assert world.program.mean_life_s(world.now_ns) == 0.625


def test_an_update_of_measurements_keeps_the_assignment(world):
    light = outlook(committed=9)
    fields = {name: getattr(light, name) for name in ("phase", "standbys", "committed")}
    world.step(ProgramSeen(role="trainer", outlook=type(light)(**fields), is_update=True))
    assert world.program.outlook.committed == 9
    assert world.program.workers == ("w0", "w1", "w2", "w3")


def test_a_rendezvous_that_cannot_be_reached_is_reported_once_and_stays_known(world):
    assert "cannot be reached" in only(Notice, world.step(ProgramSeen(role="trainer"))).text
    assert not world.step(ProgramSeen(role="trainer"))
    assert world.program.workers
    assert "unreachable" in only(Reply, world.ask(without=("w1",))).text


def test_a_request_is_done_once_the_rendezvous_has_begun_the_next_generation(world):
    found = world.ask(without=("w1",))
    wanted = only(ChangeWanted, found)
    assert (wanted.role, wanted.change.generation, wanted.change.without) == ("trainer", 1, ("w1",))
    assert not [one for one in world.step(Tick()) if isinstance(one, Outcome)]
    verdict = only(Verdict, found).proposal
    world.step(program_seen(answered=answered(verdict, "asked")))
    world.step(program_seen(generation=2, why="without w1: w4", answered=answered(verdict)))
    outcome = only(Outcome, world.step(Tick()))
    assert (outcome.result, outcome.detail) == ("done", "generation 2: without w1: w4")


def test_a_refusal_of_the_rendezvous_is_the_outcome(world):
    verdict = only(Verdict, world.ask()).proposal
    world.step(program_seen(offer=OFFER, answered=answered(verdict, "refused", "w2 has ended")))
    outcome = only(Outcome, world.step(Tick()))
    assert (outcome.result, outcome.detail) == (
        "undone",
        "refused by the rendezvous: w2 has ended",
    )


def test_a_request_without_an_answer_ends(world):
    world.ask()
    outcome = only(Outcome, world.step(Tick(), 500.0))
    assert outcome.detail == "the rendezvous has not answered in time"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"without": ("w9",)}, "no worker is called 'w9'"),
        ({"generation": 3}, "generation 3 is over: 1 runs"),
        ({"role": "rollout"}, "no rendezvous of role rollout is known"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(world, fields, why):
    assert why in only(Reply, world.ask(**fields)).text
