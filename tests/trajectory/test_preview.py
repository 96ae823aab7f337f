"""A preview is put together from its pieces, and described in sentences."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pieces import preview_note as note
from tests.pieces import take
from torchloom_core.live.trajectory.preview import Preview
from torchloom_core.wire.preview import Curve, Judgement
from torchloom_core.wire.standby_task import MOST_POINTS, End


def curve(losses, repeat=0, arm="control", first=0):
    return Curve(repeat=repeat, arm=arm, first=first, losses=tuple(losses))


def seen(*pieces):
    preview = Preview()
    for piece in pieces:
        take(preview, note(piece))
    return preview


def judged(**changes):
    fields = {"result": "worse", "pairs": 5, "for_change": 0, "over": 3}
    numbers = {"difference": 0.5, "low": 0.25, "high": 1.0, "confidence": 0.9375}
    return Judgement(**{**fields, **numbers, **changes})


def test_curves_come_in_parts_and_a_lost_part_is_a_gap():
    preview = seen(curve([1.0, 2.0]), curve([3.0], first=2), curve([5.0], first=4))
    assert preview.curves == {(0, "control"): [1.0, 2.0, 3.0, None, 5.0]}


def test_a_repeated_or_late_part_of_a_curve_is_in_its_place():
    parts = [curve([1.0, 2.0]), curve([5.0], first=4), curve([1.0, 2.0]), curve([3.0], first=2)]
    preview = seen(*parts)
    assert preview.curves == {(0, "control"): [1.0, 2.0, 3.0, None, 5.0]}


def test_endless_curves_of_a_worker_are_cut_to_the_size_of_a_preview():
    preview = seen(*[curve([1.0] * 512, repeat=n % 50, first=9488) for n in range(60)])
    assert sum(map(len, preview.curves.values())) == MOST_POINTS


@pytest.mark.parametrize(
    "change",
    [
        {"for_change": 50},
        {"diverged": 6},
        {"low": 2.0},
        {"high": 0.0},
        {"difference": 1.7e308},
    ],
)
def test_an_impossible_judgement_is_ignored(change):
    judgement = {**msgspec.to_builtins(judged()), **change}
    preview = seen(curve([1.0]), judgement)
    assert preview.judged is None


def test_pieces_after_the_end_do_not_change_the_verdict():
    preview = seen(judged(), End(points=1, seconds=1.0))
    take(preview, note(judged(result="better")))
    assert preview.judged == judged()


def test_the_pieces_of_another_begin_anew():
    preview = seen(curve([1.0]), judged(), End(points=1, seconds=1.0))
    take(preview, note(curve([2.0]), "c1.2"))
    assert (preview.curves, preview.judged, preview.end) == ({(0, "control"): [2.0]}, None, None)
    assert preview.version == 4


@given(
    st.lists(st.lists(st.none() | st.floats(-9, 9), max_size=30), min_size=1, max_size=4),
    st.integers(1, 40),
)
def test_however_few_points_are_drawn_the_least_and_the_most_are_among_them(curves, most):
    preview = Preview()
    preview.curves = {(n, "change"): losses for n, losses in enumerate(curves)}
    band = preview.band("change", most)
    known = [loss for losses in curves for loss in losses if loss is not None]
    assert len(band) <= most
    assert [point.step for point in band] == sorted({point.step for point in band})
    assert min((p.least for p in band), default=math.inf) == min(known, default=math.inf)
    assert max((p.most for p in band), default=-math.inf) == max(known, default=-math.inf)
    assert all(p.least <= p.mean + 1e-9 and p.mean <= p.most + 1e-9 for p in band)


def test_an_unfinished_preview_shows_its_progress():
    assert dict(seen(curve([1.0])).words())["tried"] == "5 of 9 steps"
    over = seen(curve([1.0]), End(points=9, seconds=1.0))
    assert dict(over.words())["tried"] == "9 steps in 1.0 s"
