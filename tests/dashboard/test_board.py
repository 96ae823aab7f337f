"""What the board says of each worker is the newest that was heard of it."""

import numpy as np
import pytest

from tests.dashboard.workers import batch, hello
from torchloom_core.live.dashboard.board import MOST_METRICS, MOST_OF_ONE, STATES, Board
from torchloom_core.wire.messages import Exit
from torchloom_core.wire.status import WorkerStatus

NOW_S = 1000.0


def status(worker, state="training", ending="", **more):
    update = {"step": 3, "incarnation": 1, "heartbeat_age_s": 0.5, "progress_age_s": 0.5, **more}
    return WorkerStatus(
        worker=worker, group="g0", node="n0", rack="", state=state, ending=ending, **update
    )


@pytest.fixture
def board():
    board = Board(stale_after_s=10.0)
    board.add(hello(), NOW_S)
    return board


def state_of(board, now_s=NOW_S):
    return [STATES[code] for code in board.states(now_s)]


def test_a_worker_is_where_its_hello_says_and_what_its_telemetry_says(board):
    board.take(batch([{"loss": 2.0, "lr": 0.1}], step=7), NOW_S)
    update = board.worker(0, NOW_S + 1.0)
    assert update == {
        "worker": "g0-0",
        "group": "g0",
        "node": "n0",
        "rack": "r0",
        "role": "trainer",
        "state": "training",
        "step": 7,
        "incarnation": 1,
        "seen_s": 1.0,
        "metrics": {"loss": 2.0, "lr": 0.1},
    }


def test_each_metric_has_its_column_whatever_order_workers_send_them_in(board):
    board.add(hello("g1-0"), NOW_S)
    board.take(batch([{"loss": 1.0, "lr": 2.0}]), NOW_S)
    board.take(batch([{"lr": 3.0, "other": 4.0, "loss": 5.0}], worker="g1-0"), NOW_S)
    assert board.values("loss").tolist() == [1.0, 5.0]
    assert board.values("lr").tolist() == [2.0, 3.0]
    assert np.isnan(board.values("other")[0])
    assert np.isnan(board.values("nobody")).all()


def test_a_worker_that_nobody_introduced_is_a_stranger_until_the_weaver_tells_of_it(board):
    board.take(batch([{"loss": 1.0}], worker="g7-0"), NOW_S)
    assert board.strangers == {"g7-0"}
    assert len(board) == 1
    board.learn([status("g7-0", metrics={"loss": 4.0})], NOW_S)
    assert board.strangers == set()
    assert board.values("loss")[1] == 4.0


def test_another_life_does_not_inherit_values(board):
    board.take(batch([{"loss": 1.0}]), NOW_S)
    board.add(hello(incarnation=2, node="n9"), NOW_S)
    assert np.isnan(board.values("loss")).all()
    assert board.steps().tolist() == [-1]
    board.take(batch([{"loss": 9.0}], incarnation=1), NOW_S)
    assert np.isnan(board.values("loss")).all()
    board.end(Exit(run="run", worker="g0-0", incarnation=1, status=1, expected=False), NOW_S)
    assert state_of(board) == ["training"]
    assert board.places[0].node == "n9"


@pytest.mark.parametrize(("resumes", "recomputed_s"), [(False, 0.0), (True, 19.0)])
def test_steps_are_recomputed_after_a_restart_and_not_in_a_new_job(board, resumes, recomputed_s):
    now_s = NOW_S
    for incarnation, launch, is_restart in ((1, "a", False), (2, "b", resumes)):
        board.add(hello(incarnation=incarnation, launch=launch), now_s)
        board.add(hello(incarnation=incarnation, launch=launch, resumes=is_restart), now_s)
        for step in range(20):
            now_s += 1.0
            board.take(batch([], incarnation=incarnation, step=step), now_s)
            board.close_second(now_s)
    assert board.time_account.shares["recomputed"] == recomputed_s


def test_an_older_life_that_says_hello_again_takes_nobodys_place(board):
    board.add(hello(incarnation=2000, node="n9"), NOW_S)
    board.take(batch([{"loss": 1.0}], incarnation=2000, step=50), NOW_S)
    for incarnation in (1, 1000):
        board.add(hello(incarnation=incarnation, node="old"), NOW_S)
        board.take(batch([{"loss": 666.0}], incarnation=incarnation, step=7), NOW_S)
    update = board.worker(0, NOW_S)
    assert (update["node"], update["step"], update["metrics"]) == ("n9", 50, {"loss": 1.0})


def test_an_older_life_that_goes_on_telling_is_no_stranger(board):
    board.add(hello(incarnation=1), 100.0)
    board.add(hello(incarnation=2), 101.0)
    board.take(batch([{"loss": 9.0}], incarnation=1), 102.0)
    assert not board.strangers
    board.take(batch([{"loss": 9.0}], incarnation=3), 102.0)
    assert board.strangers == {"g0-0"}


def test_a_life_stays_where_it_has_begun(board):
    board.add(hello(node="n0"), 100.0)
    version = board.version
    board.add(hello(node="n1"), 101.0)
    assert (board.places[0].node, board.version) == ("n0", version)
    board.add(hello(node="n1", incarnation=2), 102.0)
    assert (board.places[0].node, board.version) == ("n1", version + 1)


def test_a_life_whose_clock_went_back_follows_one_that_is_over(board):
    board.add(hello(incarnation=2000), NOW_S)
    board.end(Exit(run="run", worker="g0-0", incarnation=2000, status=1, expected=False), NOW_S)
    board.add(hello(incarnation=1000, node="n9"), NOW_S)
    assert board.places[0].node == "n9"
    board.add(hello(incarnation=2000, node="old"), NOW_S)
    assert board.places[0].node == "n9"


@pytest.mark.parametrize(("expected", "state"), [(True, "ended"), (False, "failed")])
def test_planned_and_unplanned_ends_differ(board, expected, state):
    board.end(Exit(run="run", worker="g0-0", incarnation=1, status=1, expected=expected), NOW_S)
    assert state_of(board, NOW_S + 1e6) == [state]


@pytest.mark.parametrize(
    ("state", "ending", "shown"),
    [
        ("gone", "finished", "ended"),
        ("gone", "drained", "ended"),
        ("gone", "killed", "failed"),
        ("gone", "gone", "failed"),
        ("paused", "", "paused"),
        ("of a later version", "", "unknown"),
    ],
)
def test_what_the_weaver_says_of_a_worker_is_shown(state, ending, shown):
    board = Board(stale_after_s=10.0)
    board.learn([status("g0-0", state, ending)], NOW_S)
    assert state_of(board) == [shown]


def test_the_median_is_that_of_the_comparison_for_slow_ranks_without_standbys(board):
    for name, state, own_s, wait_s in (
        ("g1-0", "training", 0.1, 0.1),
        ("g2-0", "training", 0.24, 0.0),
        ("g3-0", "training", 0.1, 0.1),
        ("g4-0", "standby", 5.0, 5.0),
    ):
        board.add(hello(name), NOW_S)
        row = {"compute_s": own_s, "step_time_s": 0.2, "wait_s": wait_s, "lr": own_s}
        board.take(batch([row], worker=name, state=state), NOW_S)
    board.close_second(NOW_S)
    values, median = board.compared("compute_s", NOW_S)
    assert sorted(values[-4:]) == [0.1, 0.1, 0.24, 5.0]
    assert median == 0.1
    assert board.compared("lr", NOW_S)[1] == 0.1
    assert board.compared("none", NOW_S)[1] is None
    assert board.waiting(NOW_S) == pytest.approx(1 / 3)


def test_who_is_not_heard_of_is_silent_and_who_has_ended_is_not(board):
    board.add(hello("g1-0"), NOW_S)
    board.end(Exit(run="run", worker="g1-0", incarnation=1, status=0, expected=True), NOW_S)
    assert state_of(board, NOW_S + 10.0) == ["training", "ended"]
    assert state_of(board, NOW_S + 10.1) == ["unreachable", "ended"]


def test_who_fell_silent_is_silent_though_the_clock_went_back(board):
    board.take(batch([{"loss": 1.0}]), NOW_S)
    assert state_of(board, NOW_S - 3600.0) == ["unreachable"]
    board.take(batch([{"loss": 1.0}]), NOW_S - 3600.0)
    assert state_of(board, NOW_S - 3600.0) == ["training"]


def test_a_spike_between_two_looks_is_in_the_series(board):
    board.take(batch([{"loss": 1.0}, {"loss": 50.0}, {"loss": -3.0}, {"loss": 2.0}]), NOW_S)
    board.close_second(NOW_S)
    assert board.series["loss"].since(0.0).tolist() == [[NOW_S, -3.0, 2.0, 50.0]]
    board.take(batch([{"loss": 2.0}]), NOW_S + 1)
    board.close_second(NOW_S + 1)
    assert board.series["loss"].since(NOW_S + 1).tolist() == [[NOW_S + 1, 2.0, 2.0, 2.0]]


def test_nothing_is_put_to_a_series_of_which_nothing_was_heard(board):
    board.take(batch([{"loss": 1.0}]), NOW_S)
    board.close_second(NOW_S)
    board.close_second(NOW_S + 60.0)
    assert len(board.series["loss"].since(0.0)) == 1


def test_numbers_that_are_none_do_no_harm(board):
    board.take(batch([{"a": float("nan"), "b": float("inf"), "c": 1e308}]), NOW_S)
    board.close_second(NOW_S)
    assert set(board.worker(0, NOW_S)["metrics"]) == {"c"}


def test_ever_new_metrics_do_not_fill_the_memory(board):
    board.add(hello("g1-0"), NOW_S)
    board.add(hello("g2-0"), NOW_S)
    for number in range(1000):
        board.take(batch([{f"m{number}": 1.0, "loss": 2.0}]), NOW_S)
    assert len(board.metrics) == MOST_OF_ONE
    assert board.leaves_out
    for number in range(1000):
        board.take(batch([{f"n{number}": 1.0, "loss": 3.0}], worker="g1-0"), NOW_S)
        board.take(batch([{f"o{number}": 1.0, "loss": 4.0}], worker="g2-0"), NOW_S)
    assert len(board.metrics) == MOST_METRICS
    assert board.values("loss").tolist() == [2.0, 3.0, 4.0]


def test_a_worker_that_brings_all_it_can_leaves_dashboard_for_the_others(board):
    board.add(hello("g1-0"), NOW_S)
    honest = {"loss": 2.0, "grad_norm": 1.0}
    for number in range(1000):
        board.take(batch([{f"m{number}": 1.0}]), NOW_S)
    board.take(batch([honest]), NOW_S)
    assert "loss" not in board.metrics
    board.take(batch([honest], worker="g1-0"), NOW_S)
    board.take(batch([honest]), NOW_S)
    assert board.values("loss").tolist() == [2.0, 2.0]


def test_ten_thousand_workers_keep_their_rows():
    board = Board(stale_after_s=10.0)
    for number in range(10_000):
        board.add(hello(f"g{number}-0"), NOW_S)
    for number in range(0, 10_000, 7):
        board.take(batch([{"loss": float(number)}], worker=f"g{number}-0"), NOW_S)
    values = board.values("loss")
    assert (values[::7] == np.arange(0, 10_000, 7)).all()
    assert np.isnan(np.delete(values, np.arange(0, 10_000, 7))).all()
    assert board.version == 10_000
