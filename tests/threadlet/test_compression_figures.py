"""The figures of reductions: each counts once, and its time without a wait is overlap."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_threadlet.adapters.torchft.measurements import RoundFigures, stamp_waits
from torchloom_threadlet.compression.figures import Cost, Entry, Figures, Meter, Overlap
from torchloom_threadlet.trainer.phases import Phases

SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), max_size=6)


class Clock:
    """A clock that a test sets, in seconds."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


@given(reductions=SPANS, waits=SPANS, looks=st.lists(st.integers(0, 50), max_size=4))
def test_overlap_is_the_union_of_the_reductions_less_the_union_of_the_waits(
    reductions, waits, looks
):
    overlap, clock, taken = Overlap(), Clock(), 0.0
    entries = [(begin, begin + length, Entry(0)) for begin, length in reductions]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", clock)
        for second in range(50):
            clock.now = float(second)
            for begin, end, entry in entries:
                if second == begin:
                    overlap.add(entry)
                if second == end:
                    overlap.discard(entry)
            for begin, length in waits:
                if second == begin:
                    overlap.begin("allreduce")
                if second == begin + length:
                    overlap.end("allreduce")
            if second in looks:
                taken += overlap.take()
        taken += overlap.take()
    under_way = {s for begin, length in reductions for s in range(begin, begin + length)}
    waited = {s for begin, length in waits for s in range(begin, begin + length)}
    assert taken == len(under_way - waited)


def test_a_reduction_in_flight_at_its_quorums_end_no_longer_counts(clock):
    overlap, entry = Overlap(), Entry(0)
    overlap.add(entry)
    clock.now = 1.0
    overlap.forget()
    clock.now = 5.0
    overlap.discard(entry)
    assert overlap.take() == 1.0


def test_a_bucket_that_ends_after_a_call_counts_in_the_next():
    meter = Meter()
    first, second = meter.begin(100), meter.begin(200)
    meter.end(first, Cost(10, 1.0, 2.0))
    taken = meter.take()
    assert (taken.reductions, taken.gradient_bytes, taken.buckets) == (
        2,
        300,
        {0: Cost(10, 1.0, 2.0)},
    )
    meter.end(second, Cost(20, 3.0, 4.0))
    taken = meter.take()
    assert (taken.reductions, taken.cost, taken.buckets) == (
        0,
        Cost(20, 3.0, 4.0),
        {1: taken.cost},
    )


def test_times_that_the_device_cannot_return_are_left_out_alone():
    def broken():
        raise RuntimeError("no such event")

    meter = Meter()
    for late in (broken, lambda: Cost(wire_s=2.0)):
        meter.end(meter.begin(100), Cost(10), late)
    assert meter.take().cost == Cost(20, wire_s=2.0)


def test_only_the_first_eight_buckets_have_metrics_of_their_own():
    meter = Meter()
    for _ in range(10):
        meter.end(meter.begin(8), Cost(3))
    metrics = meter.take().metrics()
    assert (metrics["sent_bytes"], metrics["reductions"]) == (30, 10)
    assert [name for name in metrics if name.endswith("_bytes") and name.startswith("bucket")] == [
        f"bucket_{place}_bytes" for place in range(8)
    ]


def test_only_a_managers_waits_for_a_reduction_count(clock):
    class Work:
        def wait(self):
            clock.now += 3.0

    class Manager:
        def should_commit(self):
            clock.now += 2.0

        start_quorum = wait_quorum = should_commit

        def allreduce(self, tensor):
            return Work()

    overlap, manager = Overlap(), Manager()
    stamp_waits(manager, Phases(), overlap)
    overlap.add(Entry(0))
    clock.now = 1.0
    manager.allreduce(None).wait()
    manager.should_commit()
    assert overlap.take() == 1.0 + 2.0


def test_a_round_is_reported_by_its_last_step_without_pauses(clock):
    class Group:
        def take_figures(self):
            return Figures(Cost(7), reductions=1)

    figures, taken = RoundFigures(Group()), []
    for step in range(7):
        clock.now += 1.0
        if step in (0, 3, 6):  # the first is a round of one step, as all are with DDP
            figures.decide()
        taken.append(figures.end_step(wait_s=0.25))
        clock.now += 100.0  # a pause
        figures.begin_step()
    assert [bool(row) for row in taken] == [True, False, False, True, False, False, True]
    assert taken[0]["sent_bytes"] == taken[3]["sent_bytes"] == 7
    assert "round_steps" not in taken[0]
    for row in (taken[3], taken[6]):
        assert (row["round_steps"], row["round_s"], row["round_wait_s"]) == (3, 3.0, 0.75)
