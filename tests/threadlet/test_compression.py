"""Compressed reductions between real processes, over gloo."""

import signal
import time

import pytest

from tests.threadlet.ranks import Quorum, started
from torchloom_threadlet.compression import MODES

pytestmark = pytest.mark.integration
PAYLOAD = 3_000_000


@pytest.fixture(scope="module")
def quorum():
    with started(30.0) as quorum:
        yield quorum


@pytest.fixture
def three(quorum):
    """Return a quorum of all ranks: the last test's, if it is complete."""
    if len(quorum.members) != 3:
        quorum.gather(0, 1, 2)
    quorum.all("end_step", committed=False)
    quorum.all("figures")
    quorum.all("pieces", at_once=1)
    return quorum


@pytest.mark.parametrize("mode", MODES)
def test_all_ranks_have_the_same_bits(three, mode):
    three.all("mode", mode=mode)
    for step in range(3):
        three.agree("step", seed=step, shapes=[[4099], [64, 130], [10], [3, 1000, 5]])


PIECES = {"four at once": (4, 0), "one by one": (1, 65_536), "three of many": (3, 65_536)}


@pytest.mark.long
@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
@pytest.mark.parametrize("mode", MODES)
def test_all_ranks_have_the_same_bits_in_pieces_and_the_sockets_carry_them(three, mode, pieces):
    three.all("mode", mode=mode)
    three.all("pieces", at_once=pieces[0], most_bytes=pieces[1])
    before = three.all("sent")
    for step in range(2):
        three.agree("step", seed=step, shapes=[[200_003], [64, 130], [10], [3, 1000, 50]])
    after = three.all("sent")
    counted = [now[0] - then[0] for now, then in zip(after, before, strict=True)]
    assert counted == pytest.approx([now[1] for now in after], rel=0.05, abs=30_000)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_sum_in_pieces_is_correct_in_any_layout(three, dtype):
    three.all("mode", mode="none")
    three.all("pieces", at_once=3)
    for op, value in (("SUM", 4.5), ("AVG", 1.5)):
        given = {"shape": [100, 200], "fill": 1.5, "dtype": dtype, "op": op, "transposed": True}
        assert three.agree("reduced", **given) == [value, value, 0]


def test_pieces_and_mode_change_live_and_unsent_parts_are_kept(three):
    for step in range(12):
        three.all("mode", mode=MODES[step % len(MODES)])
        three.all("pieces", at_once=1 + step % 4, most_bytes=65_536 * (step % 2))
        three.agree("step", seed=10 * step, shapes=[[40_000], [64, 130], [2000]])
    three.all("mode", mode="topk")
    three.all("step", seed=6, shapes=[[60_000]])
    three.all("pieces", at_once=5)
    least, most, _ = three.agree("reduced", shape=[60_000], fill=0.0)
    assert least < -1.0
    assert most > 1.0


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "topk"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_sum_and_an_average_are_correct(three, mode, dtype):
    three.all("mode", mode=mode)
    for op, value in (("SUM", 4.5), ("AVG", 1.5)):
        result = three.agree("reduced", shape=[20_000], fill=1.5, dtype=dtype, op=op)
        assert result == pytest.approx([value, value, 0], rel=1e-5)
        three.all("end_step", committed=False)


def test_uncompressed_collectives_are_unchanged(three):
    three.all("mode", mode="topk")
    least = {"op": "MIN", "dtype": "int64"}
    assert three.agree("reduced", shape=[5000], fill=7, **least) == [7.0, 7.0, 0]
    assert three.agree("reduced", shape=[5000], fill=0.1, dtype="float64")[0] == pytest.approx(0.3)
    assert three.agree("reduced", shape=[5000], fill=0.5, op="MAX") == [0.5, 0.5, 0]
    assert three.agree("reduced", shape=[], fill=0.125) == [0.375, 0.375, 0]
    assert three.agree("reduced", shape=[0], fill=0.0) == [0]
    assert three.agree("summed_into_each_other") == [[33.0], [33.0]]


def test_uncompressed_collectives_keep_their_order_among_compressed_ones(three):
    three.all("mode", mode="int8")
    assert three.agree("broadcast_between", numbers=1_000_000) == [0.0] * 4


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_number_that_is_not_finite_is_so_on_all_ranks(three, mode, value):
    three.all("mode", mode=mode)
    assert three.agree("reduced", shape=[5000], fill=1.0, at=[1234, value])[-1] > 0
    three.all("end_step", committed=True)
    assert three.agree("reduced", shape=[5000], fill=1.0)[-1] == 0  # and it does not return


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "least", "most"),
    [
        ("bf16", 0.49, 0.51),
        ("fp16", 0.49, 0.51),
        ("int8", 0.25, 0.27),
        ("topk", 0.02, 0.03),
        ("powersgd", 0.0, 0.02),
    ],
)
def test_the_socket_carries_the_share_of_bytes_that_a_mode_promises(three, mode, least, most):
    sent = {}
    for name in ("none", mode):
        three.all("mode", mode=name)
        before = three.all("sent")
        three.all("step", seed=1, shapes=[[PAYLOAD]])
        after = three.all("sent")
        counted = [now[0] - then[0] for now, then in zip(after, before, strict=True)]
        computed = [now[1] for now in after]
        assert counted == pytest.approx(computed, rel=0.02, abs=4000)
        sent[name] = sum(counted)
    assert least < sent[mode] / sent["none"] < most


@pytest.mark.parametrize("mode", ["none", "int8"])
def test_the_figures_of_a_step_are_reported_once_and_by_bucket(three, mode):
    three.all("mode", mode=mode)
    three.all("step", seed=1, shapes=[[PAYLOAD // 4], [PAYLOAD // 2]])
    for row in three.all("figures"):
        assert row["gradient_bytes"] == PAYLOAD + 2 * PAYLOAD
        assert row["reductions"] == 2
        assert row["sent_bytes"] == row["bucket_0_bytes"] + row["bucket_1_bytes"]
        assert row["bucket_1_bytes"] == pytest.approx(2 * row["bucket_0_bytes"], rel=0.01)
        assert 0.0 < row["wire_s"] == row["bucket_0_wire_s"] + row["bucket_1_wire_s"] < 10.0
        compress_s = row["bucket_0_compress_s"] + row["bucket_1_compress_s"]
        assert row["compress_s"] == pytest.approx(compress_s)
        assert (row["compress_s"] > 0) == (mode == "int8")
        assert row["overlap_s"] > 0.0  # no wait is recorded here
    for row in three.all("figures"):
        assert set(row.values()) == {0}
        assert len(row) == 6


def test_modes_change_live_while_ranks_leave_and_join(three):
    """Twenty steps, each in another mode; one rank leaves, another returns, none ends."""
    members = {5: (0, 1), 9: (0, 1, 2), 14: (1, 2), 17: (2, 0, 1)}
    shapes = [[40_000], [64, 130], [2000]]
    for step in range(20):
        if step in members:
            three.gather(*members[step])
        three.all("mode", mode=MODES[step % len(MODES)])
        three.agree("step", seed=10 * step, shapes=shapes, committed=step % 4 != 3)


@pytest.mark.parametrize("mode", ["topk", "powersgd"])
def test_a_step_that_was_not_committed_leaves_no_trace(three, mode):
    three.all("mode", mode=mode)
    again = {"seed": 5, "shapes": [[5000], [64, 130]]}
    first = three.agree("step", **again, committed=False)
    assert three.agree("step", **again, committed=True) == first
    assert three.agree("step", **again, committed=False) != first


@pytest.mark.parametrize("mode", ["topk", "powersgd"])
def test_unsent_parts_are_sent_after_a_switch_and_a_membership_change(three, mode):
    three.all("mode", mode=mode)
    three.all("step", seed=6, shapes=[[6000]])
    three.all("mode", mode="none")
    assert three.agree("reduced", shape=[6000], fill=0.0) == [0.0, 0.0, 0]
    three.all("end_step", committed=True)
    three.gather(0, 1)
    three.all("mode", mode=mode)
    least, most, _ = three.agree("reduced", shape=[6000], fill=0.0)
    assert least < -1.0
    assert most > 1.0


def test_a_rank_alone_changes_nothing(three):
    three.gather(1)
    three.all("mode", mode="topk")
    assert three.agree("reduced", shape=[5000], fill=1.5) == [1.5, 1.5, 0]


@pytest.mark.parametrize("mode", ["int8", "powersgd"])
def test_cut_connections_end_the_collectives_in_flight(three, mode):
    three.all("mode", mode=mode)
    three.one(0, "begin", numbers=[50_000, 50_000])
    assert three.one(0, "cut", uuid=Quorum.uuid).startswith("2 connections")
    first, second = three.one(0, "ended")
    assert "Connection closed" in first
    assert second.startswith("the process group needs a new quorum")
    assert three.one(0, "refused", numbers=50_000).startswith(
        "the process group needs a new quorum"
    )
    three.members = []


def test_a_reduction_in_flight_at_a_quorums_end_does_not_affect_the_next(three):
    three.all("mode", mode="int8")
    three.one(0, "begin", numbers=[50_000])  # the other ranks never take part
    three.gather(0, 1, 2)
    three.agree("step", seed=3, shapes=[[5000]])
    assert three.one(0, "ended") != [""]


@pytest.mark.long
def test_a_rank_that_freezes_or_dies_during_a_reduction_fails_the_others_work():
    timeout_s = 6.0  # gloo's timeout to connect is the same
    with started(timeout_s) as quorum:
        quorum.gather(0, 1, 2)
        quorum.all("mode", mode="int8")
        quorum.ranks[2].process.send_signal(signal.SIGSTOP)
        for number in (0, 1):
            quorum.one(number, "begin", numbers=[200_000, 200_000])
        began = time.monotonic()
        for number in (0, 1):
            first, second = quorum.one(number, "ended")
            assert "Timed out" in first or "Connection closed" in first
            assert second.startswith("the process group needs a new quorum")
        assert time.monotonic() - began < 2 * timeout_s

        quorum.gather(0, 1)
        quorum.agree("step", seed=1, shapes=[[5000]])
        quorum.one(0, "begin", numbers=[200_000])
        quorum.ranks[1].end()
        assert "Connection" in quorum.one(0, "ended")[0]
