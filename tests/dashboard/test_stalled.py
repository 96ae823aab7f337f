"""A rank that should train and finishes no step is named."""

import msgspec
import pytest

from tests.dashboard.workers import batch, hello
from torchloom_core.live.dashboard.board import Board
from torchloom_core.live.dashboard.health import stalled

NOW_S = 1000.0
STALE_S = 30.0


class Ranks:
    """A board of ranks that tell of their progress, a second after the other."""

    def __init__(self, count=3, step_s=1.0):
        self.board = Board(stale_after_s=STALE_S)
        self.now_s = NOW_S
        self.step_s = step_s
        self.names = [f"g{number}-0" for number in range(count)]
        self.values = {}
        self.stood_s = dict.fromkeys(self.names, 0.0)
        for name in self.names:
            self.board.add(hello(name), self.now_s)

    def train(self, seconds, frozen=(), **more):
        for _ in range(seconds):
            self.now_s += 1.0
            for name in self.names:
                self.stood_s[name] = self.stood_s[name] + 1.0 if name in frozen else 0.0
                step = int((self.now_s - NOW_S - self.stood_s[name]) / self.step_s)
                update = batch(self.values.get(name, []), worker=name, **{"step": step, **more})
                age_s = self.stood_s[name]
                self.board.take(msgspec.structs.replace(update, progress_age_s=age_s), self.now_s)
            self.board.close_second(self.now_s)

    @property
    def summary(self):
        return stalled(self.board, self.now_s)


def test_a_frozen_rank_is_named_while_the_others_go_on():
    ranks = Ranks()
    ranks.train(20)
    ranks.train(10, frozen=("g1-0",))
    assert ranks.summary == ""
    ranks.train(1, frozen=("g1-0",))
    said = "1 of 3 training ranks have finished no step for over 10 s: g1-0 at step 20"
    assert ranks.summary == said
    ranks.train(1)
    assert ranks.summary == ""


def test_a_stalled_run_names_a_few_ranks():
    ranks = Ranks(5)
    ranks.train(20)
    ranks.train(11, frozen=ranks.names)
    assert ranks.summary.startswith(
        "5 of 5 training ranks have finished no step for over 10 s: g0-0 at"
    )
    assert ranks.summary.endswith("g2-0 at step 20 and 2 more")


def test_the_rank_that_stalls_its_peers_is_named_first():
    ranks = Ranks(5)
    ranks.train(20)
    for name in ranks.names:
        ranks.values[name] = [{"trainer_waiting_s": 3.0, "trainer_stopped": 0.0}]
    ranks.values["g3-0"] = [{"trainer_waiting_s": 0.0, "trainer_stopped": 0.0}]
    ranks.values["g4-0"] = [{"trainer_waiting_s": 3.0, "trainer_stopped": 1.0}]
    ranks.train(11, frozen=ranks.names)
    stopped, computes, waits = ranks.summary.partition(": ")[2].split(", ")
    assert stopped == "g4-0 at step 20 (process stopped)"
    assert computes == "g3-0 at step 20"
    assert waits == "g0-0 at step 20 (waits for others) and 2 more"


def test_a_rank_that_is_behind_is_named_before_the_others():
    ranks = Ranks(5)
    ranks.train(20)
    ranks.train(1, frozen=("g4-0",))
    ranks.train(11, frozen=ranks.names)
    assert ": g4-0 at step 20, g0-0 at step 21," in ranks.summary


def test_long_steps_are_no_stall():
    ranks = Ranks(step_s=20.0)
    for _ in range(3):
        ranks.train(19, frozen=ranks.names)
        ranks.train(1)
    ranks.train(99, frozen=("g1-0",))
    assert ranks.summary == ""
    ranks.train(6, frozen=("g1-0",))
    assert ranks.summary.startswith("1 of 3 training ranks have finished no step for over")


@pytest.mark.parametrize("state", ["standby", "paused", "draining", "joining"])
def test_a_rank_that_does_not_train_is_not_stalled(state):
    ranks = Ranks()
    ranks.train(20)
    ranks.train(60, frozen=("g1-0",), state=state)
    assert ranks.summary == ""


def test_a_rank_before_its_first_step_may_be_loading():
    ranks = Ranks(1)
    ranks.train(60, frozen=ranks.names, step=-1)
    assert ranks.summary == ""


def test_an_unreachable_rank_is_not_stalled():
    ranks = Ranks()
    ranks.train(20)
    assert stalled(ranks.board, ranks.now_s + STALE_S + 1.0) == ""
