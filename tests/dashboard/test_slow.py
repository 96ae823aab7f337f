"""A rank that takes longer for a step than its peers, and for a while, is named."""

import math

import pytest
from msgspec.structs import replace

from tests.dashboard.workers import batch, hello
from torchloom_core.live.dashboard.board import Board

NOW_S = 1000.0


class Ranks:
    """A board of ranks that report the time of their steps every second."""

    def __init__(self, count=3):
        self.board = Board(stale_after_s=30.0)
        self.now_s = NOW_S
        self.names = [f"g{number}-0" for number in range(count)]
        for name in self.names:
            self.board.add(hello(name), self.now_s)

    def train(self, seconds, own_s=None, step_s=None, **more):
        for _ in range(seconds):
            self.now_s += 1.0
            for name in self.names:
                row = {"step_time_s": (step_s or {}).get(name, 0.2)}
                if own_s is not None:
                    row["compute_s"] = own_s.get(name, 0.1)
                self.board.take(batch([row], worker=name, **more), self.now_s)
            self.board.close_second(self.now_s)

    @property
    def summary(self):
        return self.board.slow.summary(lambda row: self.names[row])


def test_a_rank_that_the_others_wait_for_is_named_once_it_was_slow_for_a_while():
    ranks = Ranks()
    ranks.train(20, own_s={})
    ranks.train(5, own_s={"g1-0": 0.19})
    assert ranks.summary == ""
    ranks.train(1, own_s={"g1-0": 0.19})
    text = "1 slow rank: g1-0 0.19 s (1.9x the median)"
    assert ranks.summary == f"{text}; median own work in a step 0.1 s"


def test_workers_of_another_role_are_not_compared_with_trainers():
    ranks = Ranks()
    slower = [replace(hello(f"r{number}-0"), role="rollout") for number in range(4)]
    for each in slower:
        ranks.board.add(each, ranks.now_s)
    ranks.names += [each.worker for each in slower]
    ranks.train(20, step_s={each.worker: 0.9 for each in slower})
    assert ranks.summary == ""
    ranks.train(20, step_s={each.worker: 0.9 for each in slower} | {"g1-0": 0.6})
    assert ranks.summary == "1 slow rank: g1-0 0.6 s (3.0x the median); median step time 0.2 s"


def test_a_rank_that_was_below_the_threshold_meanwhile_is_not_yet_slow():
    ranks = Ranks()
    ranks.train(5, own_s={"g1-0": 0.19})
    ranks.train(1, own_s={})
    ranks.train(5, own_s={"g1-0": 0.19})
    assert ranks.summary == ""


def test_a_slow_rank_stays_slow_until_it_was_below_the_threshold_for_longer():
    ranks = Ranks()
    ranks.train(11, own_s={"g1-0": 0.24})
    for _ in range(3):  # another rank's hiccup raises the median
        ranks.train(9, own_s={"g1-0": 0.24, "g2-0": 0.2})
        assert "g1-0 0.24 s (1.2x the median, slow until 10 s below 1.5x)" in ranks.summary
        ranks.train(1, own_s={"g1-0": 0.24})
        assert "g1-0 0.24 s (2.4x the median);" in ranks.summary
    ranks.train(10, own_s={})
    assert ranks.summary.startswith("1 slow rank: g1-0 0.1 s (1.0x")
    ranks.train(1, own_s={})
    assert ranks.summary == ""


def test_a_missing_sample_is_no_recovery():
    ranks = Ranks(4)
    ranks.train(11, own_s={"g1-0": 0.24})
    ranks.train(30, own_s={"g1-0": math.nan})
    assert ranks.summary == "1 slow rank: g1-0; median own work in a step 0.1 s"
    ranks.train(1, own_s={"g1-0": 0.24})
    assert "(2.4x the median)" in ranks.summary


def test_without_reports_of_own_work_step_times_are_compared():
    ranks = Ranks()
    ranks.train(11, step_s={"g2-0": 0.5})
    text = "1 slow rank: g2-0 0.5 s (2.5x the median); median step time 0.2 s"
    assert ranks.summary == text


def test_of_many_the_slowest_are_named():
    ranks = Ranks(12)
    ranks.train(11, own_s={f"g{number}-0": 0.2 + number / 100 for number in range(5)})
    assert ranks.summary.startswith("5 slow ranks: g4-0 0.24 s (2.4x the median), ")
    assert (
        "g2-0 0.22 s (2.2x the median) and 2 more; median own work in a step 0.1 s" in ranks.summary
    )


@pytest.mark.parametrize("state", ["paused", "draining", "joining", "standby"])
def test_a_rank_that_does_not_train_is_not_slow(state):
    ranks = Ranks(4)
    ranks.train(11, own_s={"g1-0": 0.19})
    ranks.train(1, own_s={"g1-0": 0.19}, state=state)
    assert ranks.summary == ""


def test_a_stalled_rank_is_not_slow():
    ranks = Ranks(4)
    ranks.train(30, own_s={"g1-0": 0.19})
    report = replace(batch([], worker="g1-0"), progress_age_s=10.5)
    ranks.board.take(report, ranks.now_s)
    ranks.board.close_second(ranks.now_s)
    assert ranks.summary == ""


def test_of_two_neither_is_slow():
    ranks = Ranks(2)
    ranks.train(20, own_s={"g1-0": 0.9})
    assert ranks.summary == ""


def test_a_rank_that_comes_later_is_looked_at_from_then_on():
    ranks = Ranks()
    ranks.train(20, own_s={})
    ranks.names.append("g9-0")
    ranks.board.add(hello("g9-0"), ranks.now_s)
    ranks.train(11, own_s={"g9-0": 0.4})
    assert "g9-0 0.4 s" in ranks.summary
