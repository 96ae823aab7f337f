"""The page answers whether the run is healthy, with the reasons."""

import pytest

from tests.dashboard.workers import batch, hello
from torchloom_core.live.dashboard.board import Board
from torchloom_core.live.dashboard.health import health
from torchloom_core.wire.messages import Exit
from torchloom_core.wire.status import CrashLoop, PluginStatus, Status
from torchloom_core.wire.suspensions import SuspensionChanged

NOW_S = 1000.0
STALE_S = 30.0


def board_of(*workers, seconds=20):
    board = Board(stale_after_s=STALE_S)
    for name in workers:
        board.add(hello(name), NOW_S)
    for second in range(seconds):
        for name in workers:
            board.take(batch([{"compute_s": 0.1}], worker=name, step=second), NOW_S + second)
        board.close_second(NOW_S + second)
    return board


def status(**more):
    fields = {"epoch": 1, "ts_ns": 0, "stopped": False, "dry_run": False, "ticks": 1}
    return Status(run="run", malformed=0, **fields, **more)


@pytest.fixture
def board():
    return board_of("g0-0", "g1-0", "g2-0")


def test_a_run_that_trains_without_trouble_is_healthy(board):
    assert health(board, status(), NOW_S + 20) == {
        "level": "healthy",
        "reasons": [("healthy", "3 ranks train; none is slow, stalled, failed or unreachable")],
    }


def test_a_suspended_run_is_paused_also_without_ranks_and_beside_another_role_it_is_no_trouble(
    board,
):
    one = SuspensionChanged(role="batch", depth="stored", state="suspended", step=41)
    text = "role batch is suspended (stored) after step 41"
    found = health(board, status(suspensions=(one,)), NOW_S + 20)
    assert (found["level"], found["reasons"][1]) == ("healthy", ("healthy", text))
    found = health(board_of(), status(suspensions=(one,)), NOW_S + 20)
    assert found == {"level": "paused", "reasons": [("paused", text)]}


def test_an_idle_standby_is_no_trouble(board):
    board.add(hello("g3-0", state="standby"), NOW_S + 20)
    assert health(board, status(), NOW_S + 20)["level"] == "healthy"


def test_before_any_rank_trains_the_run_is_starting():
    board = Board(stale_after_s=STALE_S)
    assert health(board, None, NOW_S)["reasons"] == [
        ("starting", "no rank trains: no rank is running")
    ]
    board.add(hello("g0-0", state="joining"), NOW_S)
    board.add(hello("g1-0", state="standby"), NOW_S)
    found = health(board, None, NOW_S)
    assert found["reasons"] == [("starting", "no rank trains: 1 standby, 1 joining")]


def test_a_run_that_goes_on_with_a_failed_or_slow_rank_is_degraded(board):
    board.end(Exit(run="run", worker="g1-0", incarnation=1, status=1, expected=False), NOW_S + 20)
    assert health(board, status(), NOW_S + 20) == {
        "level": "degraded",
        "reasons": [("degraded", "1 failed: g1-0")],
    }


def test_a_run_of_which_no_rank_is_left_is_unhealthy(board):
    found = health(board, status(), NOW_S + 20 + STALE_S + 1)
    assert found["level"] == "unhealthy"
    assert found["reasons"][0] == ("unhealthy", "3 unreachable: g0-0, g1-0, g2-0")


def test_crash_loops_and_what_the_weaver_lacks_are_reasons(board):
    loop = CrashLoop(worker="g1-0", node="n1", failed=3, restart=3, most=9, error="ImportError")
    plugin = PluginStatus(name="hang", kind="policy", state="quarantined")
    found = health(
        board,
        status(
            crash_loops=(loop,),
            plugins=(plugin,),
            recording="paused since 10:00: disk full",
            broker_full="store the state",
        ),
        NOW_S + 20,
    )
    assert found["level"] == "unhealthy"
    assert [level for level, _ in found["reasons"]] == ["unhealthy"] + 3 * ["degraded"]
    assert found["reasons"][0][1].startswith("crash-looping: 3 restarts on n1 ")
    assert "recording is paused since 10:00: disk full" in found["reasons"][1][1]
    assert found["reasons"][2][1] == "the broker has no space: store the state waits"


def test_a_run_whose_ranks_have_all_ended_is_finished(board):
    for name in ("g0-0", "g1-0", "g2-0"):
        board.end(Exit(run="run", worker=name, incarnation=1, status=0, expected=True), NOW_S + 20)
    assert health(board, status(), NOW_S + 20)["reasons"] == [
        ("finished", "no rank trains: all ranks have ended")
    ]


def test_a_run_whose_ranks_wait_in_a_pause_is_paused():
    board = Board(stale_after_s=STALE_S)
    board.add(hello("g0-0", state="paused"), NOW_S)
    assert health(board, None, NOW_S)["level"] == "paused"


def test_with_two_ranks_slowness_is_not_judged():
    (reason,) = health(board_of("g0-0", "g1-0"), status(), NOW_S + 20)["reasons"]
    assert reason[1].endswith("unreachable; 3 are needed to find a slow one")
