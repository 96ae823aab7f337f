"""The codecs' properties, with all ranks of a reduction in one process."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom_threadlet.compression.codecs import Feedback, Memory
from torchloom_threadlet.compression.collectives import (
    Exchange,
    Gather,
    Peers,
    Sum,
    reduce_together,
)
from torchloom_threadlet.compression.modes import make_codecs
from torchloom_threadlet.compression.powersgd import Piece, Pieces
from torchloom_threadlet.compression.quantizers import Bfloat16, Float16, Int8

CODECS = make_codecs(0.01, 4)
QUANTIZERS = {"bf16": Bfloat16(), "fp16": Float16(), "int8": Int8()}
FLOATS = st.floats(-(2.0**126), 2.0**126, width=32)
SHAPES = st.one_of(
    st.tuples(st.integers(1, 5000)), st.tuples(st.integers(1, 60), st.integers(1, 60))
)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Small tensors gain nothing from several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def reduce(mode, tensors, memories=None):
    """Return each rank's result and memory."""
    ranks = len(tensors)
    memories = memories or [Memory()] * ranks
    given = [tensor.clone() for tensor in tensors]
    ended = reduce_together(
        [
            CODECS[mode].reduce(tensor, memory, Peers(rank, ranks))
            for rank, (tensor, memory) in enumerate(zip(tensors, memories, strict=True))
        ]
    )
    for tensor, before in zip(tensors, given, strict=True):
        assert torch.equal(tensor.view(-1).view(torch.int32), before.view(-1).view(torch.int32))
    return [total for total, _ in ended], [memory for _, memory in ended]


def bits(tensor):
    return tensor.contiguous().view(torch.int32)


@st.composite
def rank_tensors(draw):
    shape, count = draw(SHAPES), draw(st.integers(2, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    tensors = []
    for _ in range(count):
        magnitudes = 10.0 ** draw(st.integers(-30, 30))
        tensors.append(torch.randn(shape, generator=generator) * magnitudes)
    for value in draw(st.lists(FLOATS, max_size=3)):
        tensors[draw(st.integers(0, count - 1))].view(-1)[0] = value
    return tensors


@pytest.mark.parametrize("mode", CODECS)
@given(tensors=rank_tensors())
def test_all_ranks_end_with_the_same_bits_in_the_same_shape(mode, tensors):
    totals, _ = reduce(mode, tensors)
    for total in totals:
        assert total.shape == tensors[0].shape
        assert torch.equal(bits(total), bits(totals[0]))


@pytest.mark.parametrize("mode", ["topk", "powersgd"])
@given(tensors=rank_tensors())
def test_ranks_with_different_memories_end_with_the_same_bits(mode, tensors):
    _, memories = reduce(mode, tensors)
    totals, _ = reduce(mode, tensors, [Memory(), *memories[1:]])
    for total in totals:
        assert torch.equal(bits(total), bits(totals[0]))


@pytest.mark.parametrize(
    ("name", "of_number", "of_largest"),
    [("bf16", 2**-8, 2**-130), ("fp16", 2**-11, 2**-39), ("int8", 0.0, 0.5001 / 127)],
)
@given(numbers=st.lists(FLOATS, min_size=1, max_size=3000))
def test_a_quantizers_error_is_within_its_bound(name, of_number, of_largest, numbers):
    quantizer = QUANTIZERS[name]
    padded = torch.zeros(2, -(-len(numbers) // quantizer.block) * quantizer.block)
    padded[1, : len(numbers)] = torch.tensor(numbers)
    coded = quantizer.encode(padded)
    assert coded.dtype is torch.uint8
    read = quantizer.decode(coded)
    largest = padded.view(2, -1, quantizer.block).abs().amax(2, keepdim=True).double()
    allowed = of_number * padded.double().abs().view(2, -1, quantizer.block) + of_largest * largest
    error = (read.double() - padded.double()).abs().view(2, -1, quantizer.block)
    # Numbers near float32's least are only as exact as float32 is.
    assert (error <= allowed + 2.0**-125).all()


@pytest.mark.parametrize(("name", "moved"), [("bf16", 0.0), ("fp16", 0.0), ("int8", 1e-6)])
@given(numbers=st.lists(FLOATS, min_size=1, max_size=300))
def test_quantizing_twice_changes_nothing(name, moved, numbers):
    quantizer = QUANTIZERS[name]
    padded = torch.zeros(1, -(-len(numbers) // quantizer.block) * quantizer.block)
    padded[0, : len(numbers)] = torch.tensor(numbers)
    once = quantizer.decode(quantizer.encode(padded))
    twice = quantizer.decode(quantizer.encode(once))
    assert (twice - once).abs().max() <= moved * once.abs().max()


def test_a_large_finite_sum_does_not_overflow_in_fp16():
    totals, _ = reduce("fp16", [torch.full((5000,), 60_000.0)] * 3)
    assert totals[0] == pytest.approx(180_000.0, rel=1e-3)


@pytest.mark.parametrize("mode", CODECS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@settings(max_examples=20)
@given(place=st.integers(0, 4999), size=st.sampled_from([1, 1000, 5000]))
def test_a_number_that_is_not_finite_is_never_decoded_as_finite(mode, value, place, size):
    place %= size
    tensors = [torch.linspace(1.0, 2.0, size) for _ in range(3)]
    tensors[1][place] = value
    totals, memories = reduce(mode, tensors)
    for total, memory in zip(totals, memories, strict=True):
        assert not total[place].isfinite()
        assert torch.equal(bits(total), bits(totals[0]))
        assert memory.residual is None or memory.residual.isfinite().all()


@pytest.mark.parametrize("mode", ["topk", "powersgd"])
@given(seed=st.integers(0, 1000), shape=st.sampled_from([(5000,), (64, 130), (1024,)]))
def test_the_memory_is_exactly_the_unsent_part(mode, seed, shape):
    generator = torch.Generator().manual_seed(seed)
    memories, given_, got = [Memory()] * 3, torch.zeros(shape), torch.zeros(shape)
    for _ in range(4):
        tensors = [torch.randn(shape, generator=generator) for _ in range(3)]
        totals, memories = reduce(mode, tensors, memories)
        given_ += sum(tensors)
        got += totals[0]
    unsent = sum(memory.residual for memory in memories).view(shape)
    assert torch.allclose(got + unsent, given_, atol=1e-3)
    assert unsent.norm() > 0.1


@pytest.mark.parametrize("shape", [(5000,), (64, 130)])
def test_powersgd_loses_nothing_of_a_matrix_of_its_rank(shape):
    side = 70 if len(shape) == 1 else None
    rows, columns = (side, side) if side else shape
    matrices = [torch.randn(rows, 1) @ torch.randn(1, columns) for _ in range(3)]
    tensors = [matrix if side is None else matrix.reshape(-1)[:4900] for matrix in matrices]
    totals, memories = reduce("powersgd", tensors)
    totals, _ = reduce("powersgd", tensors, [Memory(None, memory.basis) for memory in memories])
    assert torch.allclose(totals[0], sum(tensors), atol=1e-3)


def test_powersgd_does_not_rely_on_the_same_arithmetic_on_all_ranks(monkeypatch):
    factor, noise = torch.linalg.qr, torch.Generator().manual_seed(0)

    class Inexact:
        def __init__(self, matrix):
            self.Q = factor(matrix).Q * (1 + 1e-6 * torch.rand(1, generator=noise))

    monkeypatch.setattr(torch.linalg, "qr", Inexact)
    totals, _ = reduce("powersgd", [torch.randn(64, 130) for _ in range(3)])
    assert torch.equal(totals[0], totals[1])
    assert torch.equal(totals[0], totals[2])


def test_powersgd_finds_columns_again_after_gradients_of_zero():
    _, memories = reduce("powersgd", [torch.zeros(64, 130)] * 3)
    totals, _ = reduce("powersgd", [torch.ones(64, 130)] * 3, memories)
    assert torch.allclose(totals[0], torch.full((64, 130), 3.0), atol=1e-3)


def test_vectors_and_small_matrices_are_not_factored():
    _, memories = reduce("powersgd", [torch.ones(1, 4000)] * 2)
    assert memories == [Memory()] * 2
    _, memories = reduce("powersgd", [torch.ones(10, 10)] * 2)
    assert memories == [Memory()] * 2


def layer(*shapes):
    return [torch.zeros(shape, requires_grad=True) for shape in shapes]


def test_the_matrices_of_a_bucket_are_found_among_the_parameters():
    pieces = Pieces([*layer((50, 20), (50,), (2, 5, 10)), torch.zeros(7)])
    assert pieces.of(torch.zeros(150)) == [Piece(0, 50, 1, 50), Piece(50, 100, 2, 50)]
    assert pieces.of(torch.zeros(1000)) == [Piece(0, 1000, 50, 20)]
    assert [piece.numbers for piece in pieces.of(torch.zeros(1150))] == [1000, 50, 100]
    assert pieces.of(torch.zeros(1100)) == [Piece(0, 1100, 34, 34)]  # no range has that length
    assert pieces.of(torch.zeros(4, 5)) == [Piece(0, 20, 4, 5)]


def test_powersgd_sends_the_vectors_of_a_bucket_whole():
    shapes = (80, 60), (60,), (60, 70)
    codec = make_codecs(0.01, 2, layer(*shapes))["powersgd"]
    memories, buckets = [Memory()] * 2, []
    for _ in range(2):
        parts = torch.ones(80, 60), torch.arange(60.0), torch.ones(60, 70)
        buckets.append(torch.cat([part.reshape(-1) for part in parts]))
    for _ in range(2):
        ended = reduce_together(
            [codec.reduce(buckets[rank], memories[rank], Peers(rank, 2)) for rank in range(2)]
        )
        memories = [Memory(None, memory.basis) for _, memory in ended]
    assert torch.allclose(ended[0][0], 2 * buckets[0], atol=1e-3)
    assert torch.equal(ended[0][0], ended[1][0])


def test_powersgd_takes_three_allreduces_for_any_bucket():
    codec = make_codecs(0.01, 2, layer((80, 60), (60,), (60, 70)))["powersgd"]
    reduction = codec.reduce(torch.ones(80 * 60 + 60 + 60 * 70), Memory(), Peers(0, 2))
    answer = next(reduction).tensor
    answer = reduction.send(answer.clone()).tensor
    answer = reduction.send(answer.clone()).tensor
    with pytest.raises(StopIteration):
        reduction.send(answer.clone())


def test_sent_bytes_are_those_of_a_ring():
    row = torch.zeros(3, 100, dtype=torch.uint8)
    assert Exchange(row).sent_bytes(3) == 200
    assert Gather(row[0]).sent_bytes(3) == 200
    assert Sum(torch.zeros(300)).sent_bytes(3) == 1600


UNSENT = Memory(residual=torch.ones(4))


def test_a_bucket_is_identified_by_its_index_and_size_in_the_step():
    feedback = Feedback()
    first, second = feedback.take_turn(4), feedback.take_turn(4)
    feedback.stage(second, UNSENT)
    feedback.end_step(committed=True)
    assert feedback.take_turn(4).memory == Memory()
    assert feedback.take_turn(4).memory is UNSENT
    assert first.memory == Memory()


def test_a_step_that_ends_early_moves_no_bucket():
    feedback = Feedback()
    feedback.stage(feedback.take_turn(4), UNSENT)
    feedback.take_turn(5)
    feedback.end_step(committed=True)
    feedback.take_turn(4)
    feedback.end_step(committed=False)  # failed before its second bucket
    assert feedback.take_turn(4).memory is UNSENT


def test_a_memory_staged_after_its_steps_end_is_ignored():
    feedback = Feedback()
    late = feedback.take_turn(4)
    feedback.end_step(committed=True)
    feedback.stage(late, UNSENT)
    feedback.end_step(committed=True)
    assert feedback.take_turn(4).memory == Memory()


def test_the_parts_of_a_model_have_buckets_of_their_own():
    feedback = Feedback()
    feedback.part = 0
    feedback.stage(feedback.take_turn(4), UNSENT)
    feedback.end_step(committed=True)
    feedback.part = 1
    assert feedback.take_turn(4).memory == Memory()
    feedback.end_step(committed=True)
    feedback.part = 0
    assert feedback.take_turn(4).memory is UNSENT


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, torch.nan])
def test_an_invalid_share_is_refused(share):
    with pytest.raises(ValueError, match="need 0 < topk_share <= 1, was"):
        make_codecs(share, 4)


def test_rank_0_of_powersgd_is_refused():
    with pytest.raises(ValueError, match="need powersgd_rank >= 1, was 0"):
        make_codecs(0.01, 0)


def test_places_that_an_aborted_collective_has_left_end_no_work_on_a_device():
    reduction = CODECS["topk"].reduce(torch.ones(5000), Memory(), Peers(0, 2))
    coded = next(reduction).row
    with pytest.raises(StopIteration):  # an index out of range would be an IndexError here
        reduction.send(torch.full((2, coded.numel()), 255, dtype=torch.uint8))
