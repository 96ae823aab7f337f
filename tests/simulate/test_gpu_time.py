"""Every GPU's time goes to one bucket, whole nanosecond by whole nanosecond."""

import pytest

from torchloom_core.lab.simulate.gpu_time import BUCKETS, GpuTime, UsefulTime


@pytest.fixture
def time():
    """Eight GPUs work, four of them as planned, and two stand by, from 100 ns on."""
    time = GpuTime(100)
    time.active.gpus, time.active.planned, time.spare.gpus = 8, 4, 2
    return time


def booked(time):
    return {bucket: gpu_ns for bucket, gpu_ns in time.totals.items() if gpu_ns}


def test_nothing_is_booked_before_it_has_passed(time):
    assert time.totals == dict.fromkeys(BUCKETS, 0)
    time.settle(100)
    assert booked(time) == {}
    time.settle(110)
    assert booked(time) == {"useful": 80, "spare": 20}
    time.settle(110)
    assert booked(time) == {"useful": 80, "spare": 20}


def test_each_account_has_its_bucket(time):
    time.away.gpus, time.waiting.gpus = 3, 5
    time.settle(101)
    assert booked(time) == {"useful": 8, "restart": 3, "waiting": 5, "spare": 2}


def test_time_before_a_move_of_gpus_stays_in_its_bucket(time):
    time.active.give(3, time.away, 120)
    time.settle(130)
    assert booked(time) == {"useful": 8 * 20 + 5 * 10, "restart": 3 * 10, "spare": 60}
    time.away.give(3, time.active, 130)
    time.settle(140)
    assert booked(time) == {"useful": 8 * 20 + 5 * 10 + 8 * 10, "restart": 30, "spare": 80}
    assert sum(time.totals.values()) == (8 + 2) * 40


def test_time_goes_to_another_bucket_from_the_switch_on(time):
    time.active.switch("lost", 110)
    time.settle(115)
    assert booked(time) == {"useful": 80, "lost": 40, "spare": 30}
    assert time.active.bucket == "lost"


def test_only_useful_time_of_gpus_beyond_the_plan_is_surplus(time):
    active = time.active
    assert active.surplus == 4
    time.settle(110)
    assert active.surplus_gpu_ns == 4 * 10
    active.give(3, time.away, 120)
    assert active.surplus_gpu_ns == 4 * 20
    time.settle(130)
    assert active.surplus_gpu_ns == 4 * 20 + 1 * 10
    active.switch("lost", 140)
    time.settle(150)
    assert active.surplus_gpu_ns == 4 * 20 + 1 * 20
    active.switch("useful", 150)
    active.give(3, time.away, 150)
    assert (active.gpus, active.surplus) == (2, 0)
    time.settle(160)
    assert active.surplus_gpu_ns == 4 * 20 + 1 * 20


def test_work_that_is_lost_is_taken_from_what_was_useful(time):
    time.settle(110)
    time.lose(7)
    assert booked(time) == {"useful": 73, "lost": 7, "spare": 20}
    time.lose(3)
    assert booked(time) == {"useful": 70, "lost": 10, "spare": 20}


def test_a_spoiled_step_is_lost_by_all_active_groups(time):
    time.settle(110)
    time.spoil(3)
    assert booked(time) == {"useful": 80 - 24, "lost": 24, "spare": 20}
    assert time.active.surplus_gpu_ns == 40 - 12


def test_a_checkpoint_excludes_the_current_step_and_later_time_is_lost(time):
    time.settle(110)
    saved = time.useful_before_step(2)
    assert saved == UsefulTime(useful=80 - 16, surplus=40 - 8)
    time.settle(120)
    time.roll_back(saved)
    assert booked(time) == {"useful": 64, "lost": 96, "spare": 40}
    assert time.active.surplus_gpu_ns == 32


def test_a_checkpoint_and_a_repair_are_taken_from_where_they_were_booked(time):
    time.settle(110)
    time.book_checkpoint(5)
    time.book_repair(6)
    assert booked(time) == {"useful": 75, "checkpoint": 5, "spare": 14, "repair": 6}
    time.book_checkpoint(1)
    time.book_repair(2)
    assert booked(time) == {"useful": 74, "checkpoint": 6, "spare": 12, "repair": 8}
