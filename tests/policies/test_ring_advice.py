import itertools

import numpy as np
import pytest

from torchloom_core.plugin import Links
from torchloom_policies.allreduce.ring_advice import RingAdvice
from torchloom_policies.allreduce.ring_order import RingSolver


def links_of(speed):
    speed = np.array(speed, dtype=float)
    np.fill_diagonal(speed, np.nan)
    return Links(
        bytes_per_s=speed,
        latency_s=np.full_like(speed, 1e-4),
        age_s=np.zeros_like(speed),
        spread=np.zeros_like(speed),
    )


def racks(n=64, seed=0):
    random = np.random.default_rng(seed)
    rack = random.permutation(n) // 8
    return np.where(rack[:, None] == rack, 1e9, 1e8) * (1 + 0.1 * random.random((n, n)))


def names(n):
    return [f"g{i:03}" for i in range(n)]


def questions(monkeypatch):
    """Count what the solver is asked, and by how much it may be."""
    asked, ask = [], RingSolver._cycle
    monkeypatch.setattr(
        RingSolver,
        "_cycle",
        lambda self, links, limit_s, *more: (
            asked.append(limit_s) or ask(self, links, limit_s, *more)
        ),
    )
    return asked


def test_a_hard_search_goes_on_at_the_next_ticks_a_question_at_a_time(monkeypatch):
    asked, advice = questions(monkeypatch), RingAdvice(wanted=True)
    links, found, ticks = links_of(racks()), None, 0
    while found is None:
        before = len(asked)
        found = advice.better(names(64), range(64), links)
        ticks += 1
        assert len(asked) - before <= 4
        assert max(asked[before:], default=0) <= 0.02
    assert 4 < ticks < 20
    assert found[0] == RingSolver().best(links.bytes_per_s, links.latency_s)


def test_what_is_found_stays_until_the_links_are_others(monkeypatch):
    asked, advice = questions(monkeypatch), RingAdvice(wanted=True)
    links = links_of(racks(16))
    while (first := advice.better(names(16), range(16), links)) is None:
        pass
    done = len(asked)
    again = advice.better(names(16), range(16), links_of(1.05 * links.bytes_per_s))
    assert again[0] == first[0]
    assert len(asked) == done
    advice.better(names(16), range(16), links_of(racks(16, seed=1)))
    assert len(asked) > done


def test_links_that_never_measure_the_same_do_not_keep_a_search_from_its_end():
    advice, random = RingAdvice(wanted=True), np.random.default_rng(0)
    for ticks in itertools.count(1):
        noisy = links_of(racks() * np.exp(0.2 * random.normal(size=(64, 64))))
        if advice.better(names(64), range(64), noisy) is not None:
            break
        assert ticks < 20


def test_a_search_ends_where_a_link_is_not_known_any_more():
    advice = RingAdvice(wanted=True)
    links = links_of(racks())
    assert advice.better(names(64), range(64), links) is None
    gone = links.bytes_per_s.copy()
    gone[0, 1] = np.nan
    assert advice.better(names(64), range(64), links_of(gone)) is None
    assert advice._search is None


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        (names(65), "need at most 64 groups to order them, was 65"),
        ([f"{i:064}" for i in range(64)], "of at most 4096 characters altogether to say it, was"),
    ],
)
def test_what_is_too_much_to_order_or_to_say_is_left_as_it_is(groups, why):
    advice, n = RingAdvice(wanted=True), len(groups)
    assert why in advice.trouble(groups)
    assert not advice.can_order(groups)
    assert advice.better(groups, range(n), links_of(np.full((n, n), 1e8))) is None
