"""A rollback is distinguished from a failure after which the others continue."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.config.schema import Costs
from torchloom_core.interface.run_failures import Rollbacks
from torchloom_core.plugin import Fault, RunFailures
from torchloom_core.testing import view_of
from torchloom_core.testing.views import EPOCH_S

COSTS = Costs(detect_s=5, restart_s=30, checkpoint_s=10)
STEP_S = 10.0
HOUR_S = 3600.0


@dataclass
class Watched:
    """A run of four workers with a look every second by default."""

    failures: RunFailures = field(default_factory=lambda: RunFailures(300.0))
    now_s: float = 0.0
    faults: list[Fault] = field(default_factory=list)

    def look(self, step, after_s=1.0, state="training"):
        self.now_s += after_s
        view = view_of(
            workers=4,
            state=state,
            step=step,
            now_s=EPOCH_S + self.now_s,
            faults=sorted(self.faults, key=lambda fault: fault.ts_ns),
            costs=COSTS,
        )
        self.failures.look(view, [row for row, s in enumerate(view.state) if s == "training"])

    def train(self, step, for_s=1000.0):
        """Train at the usual pace; return the step that is reached."""
        for second in range(round(for_s)):
            self.look(step + int((second + 1) / STEP_S))
        return step + int(for_s / STEP_S)

    def fail(self, ago_s=0.0, worker="w0"):
        ts_ns = round((EPOCH_S + self.now_s - ago_s) * 1e9) + 1
        number = len(self.faults)
        self.faults.append(
            Fault(worker=worker, node="n0", kind="exit", ts_ns=ts_ns, id=f"e{number}")
        )

    @property
    def seen(self):
        rollbacks = self.failures.rollbacks
        return rollbacks.watched, rollbacks.count


@pytest.mark.parametrize(
    ("looks", "reported", "lost", "share"),
    [
        (0, 0, 0, 0.5),  # the others continue
        (35, 0, 20, 1.0),
        (6, 0, 5, 1.0),  # faster than the config says
        (60, -1000, 0, 0.5),  # a restart without lost work
    ],
)
def test_a_failure_after_which_the_step_number_falls_is_a_rollback(looks, reported, lost, share):
    run = Watched()
    step = run.train(0)
    run.fail()
    for _ in range(looks):
        run.look(max(-1, step + reported))
    run.train(step - lost, 30.0)
    assert run.seen == (1, int(lost > 0))
    assert run.failures.rollbacks.share == share


def test_a_failure_of_the_whole_run_is_watched_until_the_restart():
    run = Watched()
    step = run.train(0)
    run.fail()
    for _ in range(20):
        run.look(step, state="gone")
    run.look(-1)
    assert run.seen == (0, 0)
    run.train(step - 50, 30.0)
    assert run.seen == (1, 1)


def test_a_step_that_was_only_reported_late_ends_no_watch():
    run = Watched()
    step = run.train(0)
    run.fail()
    for _ in range(30):
        run.look(step + 1)
    assert run.seen == (0, 0)
    run.train(step - 20, 30.0)
    assert run.seen == (1, 1)


def test_losing_the_worker_that_was_ahead_is_no_rollback():
    run = Watched()
    step = run.train(0)
    run.look([step + 1, step, step, step])
    run.fail()
    for _ in range(9):
        run.look([step + 1, step, step, step], state=["gone", *["training"] * 3])
    run.train(step, 30.0)
    assert run.seen == (1, 0)


def test_a_worker_that_joins_at_step_zero_is_no_rollback():
    run = Watched()
    step = run.train(0)
    run.fail()
    for second in range(30):
        run.look([0, *[step + second // 10] * 3])
    assert run.seen == (1, 0)


def test_an_unreachable_worker_hides_no_rollback():
    run = Watched()
    step = run.train(0)
    run.fail()
    for second in range(400):
        run.look([step, *[step - 30 + second // 10] * 3])
    assert run.seen == (1, 1)


def test_failures_in_quick_succession_end_together():
    run = Watched()
    step = run.train(0)
    run.fail()
    for _ in range(400):
        run.look(-1)
    run.fail(worker="w1")
    run.train(step - 50, 30.0)
    assert run.seen == (2, 2)


@pytest.mark.parametrize("ago_s", [2000.0, 400.0])
def test_a_late_fault_counts_but_is_not_watched(ago_s):
    run = Watched()
    step = run.train(0)
    run.fail(ago_s)
    run.train(step, 30.0)
    assert run.failures.count == 1
    assert run.seen == (0, 0)


def test_faults_from_before_the_first_look_were_not_watched():
    run = Watched()
    run.fail(1000.0)
    run.fail(5000.0)
    run.train(0)
    assert run.failures.count == 1
    assert run.seen == (0, 0)


def test_without_a_pace_nothing_is_judged():
    run = Watched()
    run.look(5)
    run.fail()
    run.train(5, 30.0)
    assert run.seen == (0, 0)


@pytest.mark.slow
def test_a_run_that_was_paused_after_a_failure_is_not_judged():
    run = Watched()
    step = run.train(0)
    run.fail()
    run.look(step)
    for _ in range(500):
        run.look(step, state="paused")
    step = run.train(step)
    assert run.seen == (0, 0)
    run.fail()
    run.train(step, 30.0)
    assert run.seen == (1, 0)


def test_without_a_failure_a_falling_step_is_no_rollback():
    run = Watched()
    step = run.train(0)
    step = run.train(step - 50)
    run.fail()
    run.train(step, 30.0)
    assert run.seen == (1, 0)


MARGIN_S = 2 * (COSTS.checkpoint_s + STEP_S)
lost = st.one_of(st.none(), st.floats(3 * MARGIN_S, 2 * HOUR_S))


@given(
    every_s=st.sampled_from([1.0, 7.0, 60.0, 600.0, HOUR_S]),
    begun=st.floats(0.0, 1.0),
    lost_s=st.lists(lost, min_size=1, max_size=3),
)
def test_lost_work_is_detected_for_any_interval_of_looks(every_s, begun, lost_s):
    rollbacks, work_s, now_s = Rollbacks(), 50_000.0, 0.0
    between_s = 10 * every_s + 3 * HOUR_S

    def look(seconds, failures=0, worked_s=None):
        nonlocal work_s, now_s
        now_s += seconds
        work_s += seconds if worked_s is None else worked_s
        rollbacks.look(int(work_s / STEP_S), round(now_s * 1e9), failures, COSTS)

    look(0.0)
    for took_s in lost_s:
        for _ in range(int(between_s / every_s)):
            look(every_s)
        if took_s is None:
            look(every_s, failures=1)
            continue
        # It fails between two looks, and is down for a while.
        rest_s = every_s * (1.0 - begun) - COSTS.detect_s - COSTS.restart_s
        look(every_s, failures=1, worked_s=every_s * begun - took_s + max(0.0, rest_s))
        while rest_s < 0.0:
            rest_s += every_s
            look(every_s, worked_s=max(0.0, rest_s))
    for _ in range(20):
        look(every_s)
    assert rollbacks.watched == len(lost_s)
    assert rollbacks.count == sum(took_s is not None for took_s in lost_s)
