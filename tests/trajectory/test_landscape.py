"""A landscape that several standbys look at is one, and its end is that of them all."""

import msgspec
import pytest

from tests.pieces import landscape_note
from torchloom_core.live.trajectory.landscape import Landscape
from torchloom_core.wire.landscape import Cells, Curvature, Plane
from torchloom_core.wire.standby_task import End

PLANE = Plane(ways="random", side=3, reach=1.0, at="a1", parts=2)


def note(worker, piece, points=4):
    return landscape_note(piece, f"c-{worker}", worker=worker, points=points)


@pytest.fixture
def seen():
    landscape = Landscape()
    landscape.take(note("v0-0", Curvature(loss=1.0, along="step", length=0.5)), "p1")
    landscape.take(note("v0-0", PLANE), "p1")
    landscape.take(note("v1-0", PLANE), "p1")
    landscape.take(note("v0-0", Cells(cells=((0, 0, 1.0),))), "p1")
    landscape.take(note("v1-0", Cells(cells=((0, 2, 2.0),)), points=3), "p1")
    return landscape


def test_all_cells_are_in_one_plane(seen):
    assert seen.cells == {(0, 0): 1.0, (0, 2): 2.0}
    assert seen.bend.loss == 1.0
    assert (seen.worker, seen.points, seen.of, seen.strangers) == ("v0-0, v1-0", 7, 18, ())


def test_it_is_over_once_all_are(seen):
    seen.take(note("v1-0", End(points=3, seconds=2.0, why="it was called off")), "p1")
    assert seen.end is None
    seen.take(note("v0-0", End(points=4, seconds=1.0)), "p1")
    assert seen.end == End(points=7, seconds=2.0, why="it was called off")


def test_the_cells_of_one_that_has_other_weights_are_left_out(seen):
    for at in ("b2", ""):
        seen.take(note("v2-0", msgspec.structs.replace(PLANE, at=at)), "p1")
        seen.take(note("v2-0", Cells(cells=((2, 2, 9.0),))), "p1")
    assert (2, 2) not in seen.cells
    assert seen.strangers == ("v2-0",)


def test_another_look_begins_anew(seen):
    seen.take(note("v1-0", Cells(cells=((1, 1, 3.0),))), "p2")
    assert seen.cells == {(1, 1): 3.0}
    assert (seen.worker, seen.bend, seen.end) == ("v1-0", None, None)


def test_a_cell_beyond_the_plane_is_left_out(seen):
    seen.take(note("v0-0", Cells(cells=((0, 3, 9.0), (3, 0, 9.0), (2, 2, 3.0)))), "p1")
    assert seen.cells == {(0, 0): 1.0, (0, 2): 2.0, (2, 2): 3.0}


@pytest.mark.parametrize(
    "lie",
    [
        Curvature(loss=2.0, along="step", length=-1.0),
        msgspec.structs.replace(PLANE, reach=0.0),
        msgspec.structs.replace(PLANE, reach=-1.0),
    ],
)
def test_an_impossible_piece_is_ignored(seen, lie):
    version = seen.version
    seen.take(note("v0-0", lie), "p1")
    assert seen.version == version


@pytest.mark.parametrize("points", [-1, True, 2**60, "4", None])
def test_a_piece_of_no_count_of_points_is_passed_over(seen, points):
    seen.take(note("v0-0", Cells(cells=((1, 1, 3.0),)), points=points), "p1")
    assert (1, 1) not in seen.cells
