"""A browser is update each point of a landscape once, and of another look from its beginning."""

from tests.dashboard.test_recorded_run import read
from tests.pieces import landscape_note as note
from tests.pieces import take
from tests.recorded_epoch import Recorder
from torchloom_core.live.dashboard.preview import LandscapeNews
from torchloom_core.live.trajectory.landscape import Landscape
from torchloom_core.wire.events import Recovered
from torchloom_core.wire.landscape import MOST_SIDE, Cells, Curvature, Line, Plane
from torchloom_core.wire.standby_task import End


def test_only_newer_events_are_sent_each_once():
    landscape, news = Landscape(), LandscapeNews()
    assert news.take(landscape) is None
    take(landscape, note(Curvature(loss=1.0, along="step", length=0.5)))
    take(landscape, note(Line(points=((0.5, 2.0),))))
    first = news.take(landscape)
    assert (first["new"], first["worker"], first["points"]) == (True, "v0-0", 5)
    assert (first["bend"].loss, first["line"]) == (1.0, [(0.5, 2.0)])
    assert news.take(landscape) is None
    take(landscape, note(Line(points=((0.25, None),))))
    take(landscape, note(Plane(ways="random", side=3, reach=1.0)))
    take(landscape, note(Cells(cells=((0, 2, 4.0),)), points=7))
    second = news.take(landscape)
    assert (second["new"], second["points"]) == (False, 7)
    assert (second["line"], second["cells"]) == ([(0.25, None)], [[0, 2, 4.0]])
    assert second["plane"].side == 3


def test_a_worker_that_tells_of_a_line_without_end_takes_no_more_dashboard_than_a_line():
    landscape = Landscape()
    for piece in range(4):
        points = tuple((float(512 * piece + number), 1.0) for number in range(512))
        take(landscape, note(Line(points=points)))
    assert len(landscape.line) == MOST_SIDE


def test_a_new_landscape_is_sent_from_its_start():
    landscape, news = Landscape(), LandscapeNews()
    take(landscape, note(Cells(cells=((0, 0, 1.0), (0, 1, 2.0)))))
    news.take(landscape)
    take(landscape, note(Cells(cells=((1, 1, 3.0),)), "c1.9"))
    update = news.take(landscape)
    assert update["new"]
    assert update["cells"] == [[1, 1, 3.0]]
    assert update["bend"] is None


async def test_of_a_recorded_run_the_newest_is_there(tmp_path):
    recorder = Recorder(tmp_path, 1)
    recorder.step(Recovered(epoch=1))
    for command in ("c1.1", "c1.2"):
        recorder.issue(command, "v0-0", "survey")
    recorder.step(note(Cells(cells=((0, 0, 1.0),)), "c1.1"))
    recorder.step(note(Cells(cells=((0, 1, 2.0),)), "c1.2"))
    recorder.step(note(End(points=5, seconds=1.0), "c1.2"))
    recorder.writer.close()
    past = await read(tmp_path)
    assert past.landscape.cells == {(0, 1): 2.0}
    assert past.landscape.end == End(points=5, seconds=1.0)
