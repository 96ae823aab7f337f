"""Reductions in pieces, several in flight at once: the same bits on all ranks, nothing lost."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from torchloom_threadlet.compression import MODES
from torchloom_threadlet.compression.codecs import LEAST_NUMBERS, Bucket, Memory, Plain, edges
from torchloom_threadlet.compression.collectives import (
    Exchange,
    Gather,
    HostWay,
    Peers,
    _answers,
    drive,
)
from torchloom_threadlet.compression.knobs import allreduce_knobs
from torchloom_threadlet.compression.modes import make_codecs

CODECS = {"none": Plain(), **make_codecs(0.05, 2)}


class Wire:
    """The ranks' collectives, each rank in a thread; the n-th must be of one kind on all."""

    def __init__(self, ranks):
        self._ranks = ranks
        self._asked = {}
        self._answers = {}
        self._lock = threading.Lock()
        self.most_at_once = [0] * ranks
        self._under_way = [0] * ranks

    def issue(self, rank, numbers, collective):
        number = next(numbers)
        done = torch.futures.Future()
        answer = self._room(collective)
        with self._lock:
            self._under_way[rank] += 1
            self.most_at_once[rank] = max(self.most_at_once[rank], self._under_way[rank])
            given = self._asked.setdefault(number, {})
            given[rank] = (collective, answer, done)
            assert len({type(one) for one, _, _ in given.values()}) == 1
            if len(given) == self._ranks:
                self._answer([given[rank] for rank in range(self._ranks)])
        return Landing(self, rank, done), answer

    def _room(self, collective):
        match collective:
            case Exchange(rows=rows):
                return torch.empty_like(rows)
            case Gather(row=row):
                return row.new_empty((self._ranks, row.numel()))
        return collective.tensor

    @staticmethod
    def _answer(given):
        results = _answers([collective for collective, _, _ in given])
        for (_, answer, done), result in zip(given, results, strict=True):
            answer.copy_(result)
            done.set_result(None)

    def landed(self, rank):
        with self._lock:
            self._under_way[rank] -= 1


class Landing:
    def __init__(self, wire, rank, done):
        self._wire, self._rank, self._done = wire, rank, done
        self._is_there = threading.Event()
        done.add_done_callback(lambda _: self._is_there.set())

    def get_future(self):
        return self._done

    def wait(self):
        assert self._is_there.wait(20.0)
        self._done.wait()
        self._wire.landed(self._rank)


def reduce(mode, tensors, memories, at, at_once, ways=None):
    """Return each rank's result and memory, and how many pieces were in flight at once."""
    ranks, wire = len(tensors), Wire(len(tensors))

    def run(rank):
        bucket = Bucket(tensors[rank], memories[rank], at)
        numbers = count()
        pieces = bucket.reductions(CODECS[mode], Peers(rank, ranks))
        way = ways[rank] if ways else HostWay()
        issue = partial(wire.issue, rank, numbers)
        on = way.accelerator.on(way.accelerator.coding) if ways else contextlib.nullcontext()
        with on:
            driven = drive(pieces, issue, at_once, way)
            bucket.write([total for total, _ in driven.results], 1)
        return bucket.remembered([memory for _, memory in driven.results])

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(run, range(ranks))), wire.most_at_once


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


SIZES = st.integers(1, 12_000)


@given(SIZES, st.sampled_from((2, 4)), st.sampled_from((0, 8192, 65_536)), st.integers(1, 16))
def test_pieces_are_in_order_without_a_gap_and_none_is_too_large(numbers, width, most, at_once):
    at = edges(numbers, width, most, at_once)
    sizes = [stop - start for start, stop in pairwise(at)]
    assert (at[0], at[-1], sum(sizes)) == (0, numbers, numbers)
    assert max(sizes) - min(sizes) <= 1
    if most:
        assert max(sizes) * width <= most
    else:
        assert len(sizes) <= at_once
    assert len(sizes) == 1 or min(sizes) >= LEAST_NUMBERS


@given(
    mode=st.sampled_from(MODES),
    numbers=SIZES,
    ranks=st.integers(2, 4),
    pieces=st.integers(1, 6),
    at_once=st.integers(1, 5),
    dtype=st.sampled_from((torch.float32, torch.bfloat16)),
    seed=st.integers(0, 99),
)
@settings(max_examples=examples(60), deadline=None)
def test_all_ranks_end_with_the_same_bits_and_keep_the_unsent_part(
    mode, numbers, ranks, pieces, at_once, dtype, seed
):
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(numbers, generator=generator).to(dtype) for _ in range(ranks)]
    residuals = [torch.randn(numbers, generator=generator) for _ in range(ranks)]
    given_, memories = [each.clone() for each in tensors], [Memory(each) for each in residuals]
    at = edges(numbers, 4, 0, pieces)
    if CODECS[mode].is_whole:
        at = [0, numbers]
    now, most_at_once = reduce(mode, tensors, memories, at, at_once)
    assert all(torch.equal(bits(tensors[0]), bits(other)) for other in tensors)
    assert set(most_at_once) <= set(range(1, min(at_once, len(at) - 1) + 1))
    exact = torch.stack(given_).float().sum(0)
    if mode in ("none", "bf16", "fp16", "int8"):
        assert all(each is old for each, old in zip(now, memories, strict=True))
    else:
        left = [each.residual for each in now]
        exact += torch.stack(residuals).sum(0) - torch.stack(left).sum(0)
    if (mode, dtype) == ("none", torch.float32):
        assert torch.equal(tensors[0], exact)
    else:
        atol = 0.2 if mode == "int8" else 0.05
        torch.testing.assert_close(tensors[0].float(), exact, atol=atol, rtol=0.02)


def test_the_requested_number_of_pieces_is_in_flight_at_once():
    tensors = [torch.ones(8 * LEAST_NUMBERS) for _ in range(2)]
    at = edges(8 * LEAST_NUMBERS, 4, 4 * LEAST_NUMBERS, 3)
    for at_once in (1, 3):
        _, most = reduce("int8", tensors, [Memory()] * 2, at, at_once)
        assert most == [at_once] * 2


def test_the_unsent_part_survives_another_piece_size():
    first = torch.arange(8 * LEAST_NUMBERS, dtype=torch.float32)
    memories, _ = reduce("topk", [first.clone(), first.clone()], [Memory()] * 2, [0, len(first)], 1)
    for pieces in (4, 3, 1):
        tensors = [torch.zeros_like(first) for _ in range(2)]
        before = memories
        memories, _ = reduce("topk", tensors, memories, edges(len(first), 4, 0, pieces), 2)
        sent = before[0].residual - memories[0].residual
        assert (sent != 0).sum() == (tensors[0] != 0).sum() > 0
        torch.testing.assert_close(tensors[0], 2 * sent, rtol=0.02, atol=0.0)


class Any:
    concurrent_allreduces, bucket_bytes, modes = 1, 0, MODES


def test_an_invalid_piece_size_is_refused_before_any_rank_makes_it():
    check = next(knob["check"] for knob in allreduce_knobs(Any()) if "check" in knob)
    check({"bucket_bytes": 0})
    check({"bucket_bytes": 65_536})
    with pytest.raises(ValueError, match="need 0, or at least 65536, was 65535"):
        check({"bucket_bytes": 65_535})
