"""Where the ranks' time went adds up, and follows from states and steps alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.live.dashboard.board import STATES
from torchloom_core.live.fleet.time_accounting import KINDS, TimeAccount

NOW_S = 1e9


class Books:
    """Books of ranks that are looked at once a second."""

    def __init__(self, ranks=1):
        self.time_account = TimeAccount(STATES)
        self.now_s = NOW_S
        self.state = ["training"] * ranks
        self.step = [0] * ranks
        self.job = [0] * ranks
        self.look(0.0)

    def look(self, took_s=1.0):
        self.now_s += took_s
        codes = np.array([STATES.index(name) for name in self.state], np.uint8)
        self.time_account.update(self.now_s, codes, np.array(self.step), np.array(self.job))

    def train(self, seconds, steps_a_second=1, rank=slice(None)):
        for _ in range(seconds):
            self.step[rank] = [step + steps_a_second for step in self.step[rank]]
            self.look()

    def stall(self, seconds):
        for _ in range(seconds):
            self.look()

    @property
    def shares(self):
        return {
            kind: round(self.time_account.shares[kind], 6)
            for kind in KINDS
            if self.time_account.shares[kind]
        }


@pytest.fixture
def books():
    return Books(2)


def test_time_in_finished_steps_is_kept(books):
    books.train(100)
    assert books.shares == {"useful": 200.0}
    assert books.time_account.shares["since_s"] == NOW_S


def test_a_slow_step_is_worth_what_a_step_usually_takes_and_the_rest_is_waiting(books):
    books.train(20)
    books.stall(30)
    assert books.shares == {"useful": 2 * 21.0, "stalled": 2 * 29.0}
    books.train(1)
    assert books.shares == {"useful": 2 * 21.0, "stalled": 2 * 30.0}


def test_steps_that_take_long_are_no_waiting(books):
    for _ in range(10):
        books.stall(29)
        books.train(1)
    assert books.shares == {"useful": 600.0}


def test_many_steps_a_second_that_stop_for_some_are_waiting(books):
    books.train(20, steps_a_second=20)
    books.stall(9)
    books.train(1, steps_a_second=20)
    assert books.shares == {"useful": 2 * 21.0, "stalled": 2 * 9.0}


def test_time_that_a_rank_stood_still_is_waiting_also_when_it_skips_what_others_made():
    books = Books(3)
    books.train(20, steps_a_second=10)
    for _ in range(14):
        books.train(1, steps_a_second=10, rank=slice(1, 3))
    before = books.shares["stalled"]
    books.step[0] = books.step[1]  # healed by its peers
    books.train(1, steps_a_second=10)
    assert books.shares["stalled"] == pytest.approx(before, abs=0.2)
    books.train(20, steps_a_second=10)
    assert books.shares["useful"] == pytest.approx(2 * 55 + 41, abs=0.2)
    assert books.shares["stalled"] == pytest.approx(14, abs=0.2)


def test_a_rank_that_comes_new_and_counts_from_0_makes_no_step_of_others_again():
    books = Books(4)
    books.state[3], books.step[3] = "unknown", -1
    books.train(50, steps_a_second=20, rank=slice(0, 3))
    books.state[3] = "training"
    books.train(3, steps_a_second=20)
    books.state[:3] = ["ended"] * 3
    books.train(30, steps_a_second=20, rank=slice(3, 4))
    assert "recomputed" not in books.shares
    assert books.shares["useful"] == pytest.approx(3 * 53 + 33, abs=3)


def test_steps_that_are_made_again_are_taken_back(books):
    books.train(100)
    books.state = ["failed"] * 2
    books.stall(20)
    books.state, books.step = ["training"] * 2, [-1, -1]
    books.stall(5)
    books.step = [81, 81]  # from a checkpoint at 80
    books.look()
    assert books.shares == {
        "useful": 2 * 81.0,
        "recomputed": 2 * 19.0,
        "down": 2 * 20.0,
        "stalled": 2 * 6.0,
    }
    books.train(19)
    assert books.shares["useful"] == 2 * 100.0


def test_a_new_job_that_counts_from_0_makes_no_step_again_and_its_own_it_does(books):
    books.train(100)
    books.step, books.job = [0, 0], [1, 1]
    books.train(60)
    assert books.shares == {"useful": 2 * 160.0}
    books.step = [30, 30]
    books.train(1)
    assert books.shares["recomputed"] == pytest.approx(2 * 30.0, abs=2)


def test_a_run_that_goes_back_while_it_goes_on_is_seen(books):
    books.train(100)
    books.step = [50, 50]
    books.train(1)
    assert books.shares == {"useful": 2 * 52.0, "recomputed": 2 * 49.0}


def test_a_rank_that_lags_is_no_run_that_goes_back(books):
    books.train(50)
    books.train(50, rank=slice(0, 1))
    books.step[1] = 99
    books.state[0] = "failed"
    books.look()
    assert "recomputed" not in books.shares


def test_one_rank_that_tells_of_a_step_nobody_has_come_to_takes_nothing_back():
    books = Books(3)
    books.train(50)
    for _ in range(50):
        books.step[0] += 10**9
        books.train(1)
    books.step[0] = books.step[1]
    books.train(20)
    assert "recomputed" not in books.shares


def test_the_step_of_the_run_ignores_ended_ranks_and_outliers():
    books = Books(5)
    books.train(10)
    books.step[0] = 2**53
    books.look()
    assert books.time_account.run_step == 10
    books.state[1:3], books.step[3:] = ["failed"] * 2, [4, 4]
    books.look()
    assert books.time_account.run_step == 4
    books.state = ["ended"] * 5
    books.look()
    assert books.time_account.run_step == 4


def test_what_a_rank_does_before_its_first_step_and_beside_training_is_waiting(books):
    books.state = ["joining", "paused"]
    books.stall(10)
    books.state, books.step = ["training"] * 2, [-1, -1]
    books.stall(5)
    books.step = [7, 7]
    books.look()
    assert books.shares == {"stalled": 2 * 16.0}


def test_stand_bys_and_the_silent_have_their_own_and_who_has_ended_none(books):
    books.state = ["standby", "unreachable"]
    books.stall(10)
    books.state = ["left", "ended"]
    books.stall(10)
    assert books.shares == {"standby": 10.0, "down": 10.0}


def test_the_step_that_a_rank_dies_in_is_down(books):
    books.train(10)
    books.stall(5)
    books.state[0] = "unreachable"
    books.stall(5)
    assert books.shares["down"] == 10.0


def test_a_report_that_was_not_read_is_not_shown():
    books = Books()
    books.train(10)
    books.look(3600.0)
    assert sum(books.shares.values()) == 10.0


@given(
    st.lists(
        st.tuples(st.sampled_from(STATES), st.integers(-1, 40), st.sampled_from([0.5, 1.0, 3.0])),
        max_size=60,
    )
)
def test_every_second_of_a_rank_that_has_not_ended_is_in_one_kind(looks):
    books = Books()
    seconds = 0.0
    for state, step, took_s in looks:
        books.state, books.step = [state], [step]
        books.look(took_s)
        seconds += 0.0 if state in ("left", "ended") else took_s
    sent = books.time_account.shares
    assert all(sent[kind] >= -1e-9 for kind in KINDS)
    assert sum(sent[kind] for kind in KINDS) == pytest.approx(seconds)
